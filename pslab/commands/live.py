"""Commands that ask a running job: ``ps-lab status`` and ``note``.

They identify themselves as an observer, or as an admin for notes.
"""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from pslab.commands.failure import EPILOG, Failure, console
from pslab.display.progress import Display, choose, print_json
from pslab.display.status import status_json, status_view
from pslab.display.tables import figures_of, tables_view
from pslab.experiment import Experiment
from pslab.launch.security import options_for
from pslab.launch.status_client import INTERVAL, StatusClient, StatusError
from pslab.runs.folder import EXPERIMENT, RunError, address_of, job_of, secret_of
from pswire.addresses import Address, AddressError, parse_hosts
from pswire.command.options import security_options
from pswire.config.experiment import ExperimentError
from pswire.exits import ExitCode
from pswire.security.credentials import Credentials
from pswire.security.names import IdentityError, Role
from pswire.security.secret import Secret
from pswire.security.settings import OBSERVER, SecurityError, SecurityOptions, credentials_for, job_secret
from pswire.v1 import coordinator_pb2 as pb


def observer_credentials(
    options: SecurityOptions, run: Path | None = None, *, role: Role = Role.OBSERVER
) -> Credentials:
    """Return the credentials for a cluster, or for the run in folder `run`. Raises Failure.

    A run that has made certificates has one for this in its folder. Files that the folder's experiment names are not
    used, because the folder also names the address to which they would be presented.
    """
    if run is not None and not options.with_environment(os.environ).given:
        options = options_for(run)
        if not options.given:
            _note_own_files(run)
    try:
        found = credentials_for(role, options, os.environ, name=OBSERVER)
        if role is not Role.ADMIN or found.encrypted:
            return found
        return replace(found, job_secret=_secret(run))
    except IdentityError as error:
        raise Failure(error, ExitCode.UNTRUSTED) from error
    except SecurityError as error:
        raise Failure(error) from error


def _secret(run: Path | None) -> Secret:
    """Return the secret of the job: that in the run's folder, or PS_JOB_SECRET. Raises IdentityError, SecurityError."""
    given = Secret(job_secret(os.environ).encode())
    try:
        found = Secret() if run is None else secret_of(run)
    except IdentityError:
        if not given:
            raise
        return given
    return found or given


def status_client(target: str, options: SecurityOptions, *, role: Role = Role.OBSERVER) -> StatusClient:
    """Return a client of the coordinator at address `target`, or of the running run in folder `target`. Raises
    Failure."""
    hosts, folder = servers_of(target)
    credentials = observer_credentials(options, folder, role=role)
    return StatusClient(",".join(map(str, hosts)), credentials=credentials, job=job_in(folder))


def job_in(folder: Path | None) -> Callable[[], str]:
    """Return a function that says which job a run's folder is of; empty while nobody knows."""
    return (lambda: "") if folder is None else partial(job_of, folder)


def servers_of(target: str) -> tuple[list[Address], Path | None]:
    """Return the addresses that `target` names, or that the running run in folder `target` has, and the folder. Raises
    Failure."""
    folder = Path(target) if Path(target).is_dir() else None
    try:
        return list(parse_hosts(target if folder is None else address_of(folder))), folder
    except AddressError as error:
        raise Failure(f"{error} (and no run folder has that name)") from error
    except RunError as error:
        raise Failure(error) from error


def _note_own_files(run: Path) -> None:
    """Say so if a run's experiment names certificates."""
    try:
        section = Experiment.load(run / EXPERIMENT).security
    except ExperimentError:
        return
    if section.ca or section.cert or section.key:
        click.echo(
            f"note: {run / EXPERIMENT} names certificates, which are not used: give --tls-ca and its companions",
            err=True,
        )


@click.command(epilog=EPILOG)
@click.argument("target", metavar="HOST:PORT|RUN")
@click.option("--json", "as_json", is_flag=True, help="Print the whole status as one JSON object.")
@click.option(
    "--watch",
    is_flag=True,
    help="Show it again and again, as ps-lab run does, until the server is gone, or Ctrl-C.",
)
@security_options
def status(target: str, as_json: bool, watch: bool, security: SecurityOptions) -> None:
    """Show what a cluster is doing, and why each waiting worker waits.

    HOST:PORT is the server with task index 0, or any server of a job with replicas; RUN is the folder of a
    running run. For every waiting worker, a sentence says since when it has waited and what would release it.
    With replicas the status says which server leads, and what one more loss would mean.

    Sparse tables, if the job has some, follow in a table. Numbers are of all servers together.

    \b
      rows, MiB     rows, and the memory of rows and index
      per version   rows that a version changed in the mean, and the last one
      made          rows made since the servers started; "evicted": rows removed since then
      not made      gradients that were dropped because rules of admission made no row for them
    """
    client = status_client(target, security)
    try:
        first = client.ask()
        if watch:
            show(first, client.ask, choose(as_json=as_json))
        elif as_json:
            print_json(status_json(first))
        else:
            console().print(status_view(first))
            if tables := figures_of(first):
                console().print(tables_view(tables))
    except StatusError as error:
        raise Failure(error, error.code) from error
    finally:
        client.close()


def show(first: pb.StatusReply, ask: Callable[[], pb.StatusReply], display: Display) -> None:
    """Show the status until `ask` raises StatusError."""
    reply = first
    with display:
        while True:
            display.status(reply, time.monotonic())
            time.sleep(INTERVAL)
            try:
                reply = ask()
            except StatusError as error:
                gone = f"the server is gone: {error}"
                break
    click.echo(gone, err=True)


@click.command(epilog=EPILOG)
@click.argument("target", metavar="HOST:PORT|RUN")
@click.argument("text")
@security_options
def note(target: str, text: str, security: SecurityOptions) -> None:
    """Write a remark into the decision log of a running job.

    HOST:PORT is the server with task index 0, or any server of a job with replicas; RUN is the folder of a
    running run. The decision log keeps TEXT with its time; the dashboard, the server's own log and pictures
    show it. Under TLS this requires an admin's certificate; without it the job's secret, if it
    has one, from the run folder or PS_JOB_SECRET.

    \b
      ps-lab note runs/digits "learning rate looks too large"
    """
    client = status_client(target, security, role=Role.ADMIN)
    try:
        client.note(text)
    except StatusError as error:
        raise Failure(error, error.code) from error
    finally:
        client.close()
    click.echo("noted")
