"""The command ``ps-lab manifest``."""

from pathlib import Path

import click

from pslab.commands.failure import EPILOG, Failure, failures
from pslab.launch.experiments import load
from pslab.manifests.request import KINDS, ManifestError, ManifestRequest
from pswire.command.options import overrides_option
from pswire.config.experiment import ExperimentError


@click.command(epilog=EPILOG)
@click.argument("experiment", metavar="EXPERIMENT", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--kind",
    type=click.Choice([*KINDS]),
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
@overrides_option("Override a key: cluster.workers=8. Repeatable.")
def manifest(
    experiment: Path,
    kind: str,
    image: str,
    tls: str | None,
    insecure: bool,
    claim: str | None,
    overrides: tuple[str, ...],
) -> None:
    """Print Kubernetes objects that run EXPERIMENT, as YAML. Their names begin with run.name.

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
        request = ManifestRequest(load(experiment, overrides), image, kind, tls, claim)
    if tls is None:
        click.echo("note: without --tls anybody who reaches the pods can join and read the model", err=True)
    if claim is None:
        click.echo("note: without --claim the run folder is lost with the pod of server 0", err=True)
    elif request.comes_back and request.experiment.cluster.servers > 1:
        click.echo(
            f"note: all servers write into the run folder: claim {claim} must be ReadWriteMany", err=True
        )
    click.echo(f"# {experiment.name} by ps-lab manifest --kind {kind}\n{request.text()}", nl=False)
