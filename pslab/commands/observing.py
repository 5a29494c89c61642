"""Who a command is that looks at a cluster: an observer, or nobody in particular."""

import os
from pathlib import Path

import click

from pslab.commands.failure import Failure
from pslab.launch.security import options_for
from pslab.launch.status_client import StatusClient
from pslab.runs.folder import EXPERIMENT, RunError, address_of
from pswire.addresses import AddressError, parse_address
from pswire.config.experiment import ExperimentError, load_experiment
from pswire.config.run_sections import SecuritySection
from pswire.exits import ExitCode
from pswire.security.credentials import Credentials
from pswire.security.names import IdentityError, Role
from pswire.security.settings import OBSERVER, SecurityError, SecurityOptions, credentials_for
from pswire.security.tokens import TokenError


def observer_credentials(
    options: SecurityOptions, run: Path | None = None, *, trusted: bool = False, role: Role = Role.OBSERVER
) -> Credentials:
    """`run`: the folder of a run that goes on. What this user started it with is used; the files that the folder itself
    names only if it is `trusted`, for it names the address, too, to which they would be shown. Raises Failure."""
    section = None
    if run is not None and not options.with_environment(os.environ).given:
        options = options_for(run)
        section = None if options.given else _section_of(run, trusted)
    try:
        return credentials_for(role, options, os.environ, section, name=OBSERVER)
    except IdentityError as error:
        raise Failure(error, ExitCode.UNTRUSTED) from error
    except (SecurityError, TokenError) as error:
        raise Failure(error) from error


def status_client(
    target: str, options: SecurityOptions, *, trusted: bool, role: Role = Role.OBSERVER
) -> StatusClient:
    """Asks server 0 of a cluster: `target` is its address, or the folder of a run that goes on. Raises Failure."""
    folder = Path(target) if Path(target).is_dir() else None
    try:
        address = str(parse_address(target if folder is None else address_of(folder)))
    except (AddressError, RunError) as error:
        raise Failure(error) from error
    return StatusClient(
        address, credentials=observer_credentials(options, folder, trusted=trusted, role=role)
    )


def _section_of(run: Path, trusted: bool) -> SecuritySection | None:
    """[security] of a run's experiment; None where there is nothing to read: whoever asks the servers hears more."""
    try:
        section = load_experiment(run / EXPERIMENT).security
    except ExperimentError:
        return None
    if trusted or not (section.ca or section.cert or section.key or section.token_file):
        return section
    click.echo(
        f"note: {run / EXPERIMENT} names certificates or tokens. They are not shown to its server: you did not start "
        "this run here, or it is over. Use --tls-ca and its companions, or --trust if you know who made the folder",
        err=True,
    )
    return None
