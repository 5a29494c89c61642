"""The command ``ps-lab manifest``."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from pslab.commands.failure import EPILOG, Failure, failures
from pslab.launch.experiments import load
from pslab.manifests.jobs import jobset, plain
from pslab.manifests.request import ManifestError, Request, name_from
from pswire.command.options import overrides_option
from pswire.config.experiment import ExperimentError

_KINDS: Mapping[str, Callable[[Request], list[dict[str, Any]]]] = {"jobs": plain, "jobset": jobset}


@click.command(epilog=EPILOG)
@click.argument("experiment", metavar="EXPERIMENT", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--kind",
    type=click.Choice([*_KINDS]),
    default="jobs",
    show_default=True,
    help="jobs: two Indexed Jobs, for plain Kubernetes. jobset: the same as one JobSet.",
)
@click.option(
    "--image",
    required=True,
    metavar="IMAGE",
    help="Image with paramserver and the job's module (see Dockerfile).",
)
@click.option("--name", metavar="NAME", help="Name of the objects.  [default: run.name]")
@click.option(
    "--namespace", metavar="NAMESPACE", help="Namespace of the objects. Default: kubectl's current one."
)
@click.option(
    "--tls",
    metavar="SECRET",
    help="Encrypt and authenticate with ca.crt, tls.crt and tls.key in the Secrets SECRET-servers and SECRET-workers "
    "(ps-lab certs makes these files).",
)
@click.option(
    "--insecure",
    is_flag=True,
    help="Use no TLS: anybody who reaches the pods can join, push gradients and read the model.",
)
@click.option(
    "--claim",
    metavar="CLAIM",
    help="PersistentVolumeClaim for run folders; without one they are lost with their pods. Checkpoints and "
    "replicas need a claim to which all servers can write.",
)
@click.option(
    "--restarts",
    type=click.IntRange(0, 1000),
    default=3,
    show_default=True,
    metavar="N",
    help="New pods for each worker that died of a transient cause; also for servers, with checkpoints and a --claim, "
    "or with replicas.",
)
@overrides_option("Override a key: cluster.workers=8. Repeatable.")
def manifest(
    experiment: Path,
    kind: str,
    image: str,
    name: str | None,
    namespace: str | None,
    tls: str | None,
    insecure: bool,
    claim: str | None,
    restarts: int,
    overrides: tuple[str, ...],
) -> None:
    """Print Kubernetes objects that run EXPERIMENT, as JSON documents, which are YAML.

    \b
      ps-lab manifest exp.toml --image registry.example/digits:1 --tls digits-tls --claim runs | kubectl apply -f -

    They have not been tried on a real cluster. docs/guides/kubernetes.md describes them.
    """
    if insecure == (tls is not None):
        given = f"both, --tls {tls} and --insecure" if insecure else "neither"
        raise Failure(
            f"expected either --tls SECRET, with certificates from ps-lab certs, or --insecure, got {given}: without "
            "TLS anybody who reaches the pods can join and read the model"
        )
    with failures(ExperimentError, ManifestError):
        loaded = load(experiment, overrides)
        request = Request(loaded, image, name or name_from(loaded.run.name), namespace, tls, claim, restarts)
        documents = _KINDS[kind](request)
    _advise(request)
    click.echo(f"# {experiment.name} by ps-lab manifest --kind {kind}")
    for document in documents:
        click.echo(f"---\n{json.dumps(document, indent=2)}")


def _advise(request: Request) -> None:
    """Print to standard error what is easily overlooked."""
    if request.tls is None:
        click.echo("note: without --tls anybody who reaches the pods can join and read the model", err=True)
    if request.claim is None:
        click.echo("note: without --claim the run folder is lost with the pod of server 0", err=True)
    elif request.comes_back and request.experiment.cluster.servers > 1:
        click.echo(
            f"note: all servers write into the run folder: claim {request.claim} must be ReadWriteMany",
            err=True,
        )
