"""Who a command is that looks at a cluster: an observer, or nobody in particular."""

import os
from pathlib import Path

from pslab.commands.failure import Failure
from pslab.launch import observers
from pswire.exits import ExitCode
from pswire.security.credentials import Credentials
from pswire.security.names import IdentityError, Role
from pswire.security.settings import SecurityError, SecurityOptions, credentials_for
from pswire.security.tokens import TokenError


def observer_credentials(options: SecurityOptions, run: Path | None = None) -> Credentials:
    """`run`: the folder of a run that goes on, which may have certificates of its own. Raises Failure."""
    if run is not None and not options.with_environment(os.environ).given:
        options = observers.options_for(run)
    try:
        return credentials_for(Role.OBSERVER, options, os.environ)
    except IdentityError as error:
        raise Failure(error, ExitCode.UNTRUSTED) from error
    except (SecurityError, TokenError) as error:
        raise Failure(error) from error
