"""Who a command is that looks at a cluster: an observer, or nobody in particular."""

import os
from pathlib import Path

from pslab.commands.failure import Failure
from pslab.launch import observers
from pslab.runs.folder import EXPERIMENT
from pswire.config.experiment import ExperimentError, load_experiment
from pswire.config.run_sections import SecuritySection
from pswire.exits import ExitCode
from pswire.security.credentials import Credentials
from pswire.security.names import IdentityError, Role
from pswire.security.settings import OBSERVER, SecurityError, SecurityOptions, credentials_for
from pswire.security.tokens import TokenError


def observer_credentials(options: SecurityOptions, run: Path | None = None) -> Credentials:
    """`run`: the folder of a run that goes on, which may have certificates of its own, or name files of the user's.
    Raises Failure."""
    section = None
    if run is not None and not options.with_environment(os.environ).given:
        options = observers.options_for(run)
        section = None if options.given else _section_of(run)
    try:
        return credentials_for(Role.OBSERVER, options, os.environ, section, name=OBSERVER)
    except IdentityError as error:
        raise Failure(error, ExitCode.UNTRUSTED) from error
    except (SecurityError, TokenError) as error:
        raise Failure(error) from error


def _section_of(run: Path) -> SecuritySection | None:
    """[security] of a run's experiment; None where there is nothing to read: whoever asks the servers hears more."""
    try:
        return load_experiment(run / EXPERIMENT).security
    except ExperimentError:
        return None
