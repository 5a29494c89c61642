"""``ps-lab manifest``"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from pslab.commands.failure import EPILOG, Failure
from pslab.launch.experiments import load
from pslab.manifests import yaml
from pslab.manifests.checking import problems, schema_problems
from pslab.manifests.jobs import jobset, plain, tfjob
from pslab.manifests.request import ManifestError, Request, name_from
from pswire.config.experiment import ExperimentError
from pswire.exits import ExitCode

_KINDS: Mapping[str, Callable[[Request], list[dict[str, Any]]]] = {
    "jobs": plain,
    "jobset": jobset,
    "tfjob": tfjob,
}


@click.command(epilog=EPILOG)
@click.argument("experiment", metavar="EXPERIMENT", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--kind",
    type=click.Choice([*_KINDS]),
    default="jobs",
    show_default=True,
    help="jobs: two Indexed Jobs, without anything that is not in Kubernetes. jobset: the same as one JobSet. tfjob: "
    "for Kubeflow's training operator 1, with TF_CONFIG.",
)
@click.option(
    "--image", required=True, metavar="IMAGE", help="Has paramserver and the job's module (see Dockerfile)."
)
@click.option("--name", metavar="NAME", help="Of the objects.  [default: run.name]")
@click.option("--namespace", metavar="NAMESPACE", help="Default: the one that kubectl is set to.")
@click.option(
    "--tls",
    metavar="SECRET",
    help="Encrypt and authenticate with what the Secrets SECRET-servers and SECRET-workers hold: ca.crt, tls.crt and "
    "tls.key (ps-lab certs makes them).",
)
@click.option(
    "--insecure",
    is_flag=True,
    help="In place of --tls: whoever reaches the pods can join, push gradients and read the model.",
)
@click.option(
    "--claim",
    metavar="CLAIM",
    help="PersistentVolumeClaim for run folders, which end with their pods without one. Checkpoints need one that all "
    "servers may write to.",
)
@click.option(
    "--restarts",
    type=click.IntRange(0, 1000),
    default=3,
    show_default=True,
    metavar="N",
    help="New pods for each worker that died of something passing; for servers too, where checkpoints are taken and "
    "there is a --claim.",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key: cluster.workers=8. Repeatable.",
)
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
    """Print Kubernetes objects that run EXPERIMENT, as YAML.

    \b
      ps-lab manifest exp.toml --image registry.example/digits:1 --tls digits-tls --claim runs | kubectl apply -f -

    The objects are checked before they are printed: by rules of ours, and by Kubernetes' schemas where
    kubernetes-validate is installed (the extra kubernetes). We had no cluster to try them on.
    docs/guides/kubernetes.md tells what they hold.
    """
    if insecure == (tls is not None):
        given = f"both, --tls {tls} and --insecure" if insecure else "neither"
        raise Failure(
            f"expected --tls SECRET, whose certificates ps-lab certs makes, or --insecure, got {given}: without TLS "
            "whoever reaches the pods can join and read the model"
        )
    try:
        loaded = load(experiment, overrides)
        request = Request(loaded, image, name or name_from(loaded.run.name), namespace, tls, claim, restarts)
    except (ExperimentError, ManifestError) as error:
        raise Failure(error) from error
    documents = _KINDS[kind](request)
    judged = schema_problems(documents)
    found = [*problems(documents), *(judged or ())]
    if found:
        raise Failure("\n  ".join(["the manifest is not as it must be:", *found]), ExitCode.INTERNAL)
    _advise(request)
    click.echo(f"# {experiment.name} by ps-lab manifest --kind {kind}\n{yaml.text_of(documents)}", nl=False)


def _advise(request: Request) -> None:
    """What is easily overlooked, on standard error."""
    if request.tls is None:
        click.echo("note: without --tls whoever reaches the pods can join, and read the model", err=True)
    if request.claim is None:
        click.echo("note: without --claim the run folder ends with the pod of server 0", err=True)
    elif request.experiment.run.checkpoint_every and request.experiment.cluster.servers > 1:
        click.echo(
            f"note: all servers write checkpoints: claim {request.claim} must be ReadWriteMany", err=True
        )
