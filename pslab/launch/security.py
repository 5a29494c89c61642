"""The certificates of one run: made for it, or the user's own.

Those that are made come from an authority that lives in this process only. Keys reach their processes by their keepers'
standard input (`pslab.launch.keeping.files`); none is on a disk, in a command line or in the run folder.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

from pslab.launch.engines.launcher import EngineError, Task
from pslab.launch.keeping.blanks import file
from pswire.config.experiment import Experiment
from pswire.config.run_sections import SecuritySection
from pswire.security.authority import Authority
from pswire.security.credentials import NO_TLS, Credentials, LiveIdentity
from pswire.security.identity import Identity
from pswire.security.names import IdentityError, Role, cluster_named_after
from pswire.security.settings import (
    OBSERVER,
    VARIABLES,
    SecurityError,
    SecurityOptions,
    credentials_for,
)
from pswire.security.tokens import TokenError

# By the variable that names a file to a process.
_FILES: Final = {"PS_TLS_CA": "ca.pem", "PS_TLS_CERT": "cert.pem", "PS_TLS_KEY": "key.pem"}
# What a process finds in its environment.
ENVIRONMENT: Final = {variable: file(name) for variable, name in _FILES.items()}


class Protection(Protocol):
    """Who the processes of a run are to each other.

    `credentials` of this process, which watches; `observer`: what other commands of this user show that look.
    """

    observer: Identity | SecurityOptions
    credentials: Credentials

    def protected(self, task: Task, role: Role, name: str) -> Task:
        """The task of the process that others know by that name."""


class RunSecurity:
    """Certificates for this run alone. Raises EngineError where they cannot be made."""

    def __init__(self, run: str) -> None:
        try:
            self._authority = Authority.make(cluster_named_after(run))
            observer = self._authority.issue(Role.OBSERVER, "ps-lab")
        except IdentityError as error:
            raise EngineError(
                f"a run on several machines makes certificates for itself: {error}, or set security.insecure=true on "
                "a network where you trust everybody"
            ) from error
        self.observer: Identity | SecurityOptions = observer
        self.credentials = Credentials(LiveIdentity(observer), role=Role.OBSERVER)

    def protected(self, task: Task, role: Role, name: str) -> Task:
        """As `Protection.protected`."""
        certified = partial(self.files, role, name)
        return replace(task, environment={**task.environment, **ENVIRONMENT}, more_files=certified)

    def files(self, role: Role, name: str, address: str) -> Mapping[str, bytes]:
        """Those of one process whose node has that address, by name. Raises IdentityError."""
        hosts = (address,) if role is Role.SERVER else ()
        identity = self._authority.issue(role, name, hosts)
        contents = (identity.ca, identity.cert, identity.key.reveal())
        return dict(zip(_FILES.values(), contents, strict=True))


class OwnFiles:
    """Those that the experiment's [security] names: at the same paths on all nodes. Raises EngineError where this
    process cannot use its own."""

    def __init__(self, section: SecuritySection) -> None:
        self._section = section
        self.observer: Identity | SecurityOptions = (
            SecurityOptions().with_environment(os.environ).with_section(section).named(OBSERVER)
        )
        try:
            self.credentials = credentials_for(
                Role.OBSERVER, SecurityOptions(), os.environ, section, name=OBSERVER
            )
        except (IdentityError, SecurityError, TokenError) as error:
            raise EngineError(f"[security]: ps-lab looks at the run as {OBSERVER}: {error}") from error

    def protected(self, task: Task, role: Role, name: str) -> Task:
        """As `Protection.protected`: in the environment, for a script does not read the experiment file."""
        own = SecurityOptions().with_section(self._section).named(name)
        told = {variable: getattr(own, option) for option, variable in VARIABLES.items()}
        said = {variable: path for variable, path in told.items() if path}
        return replace(task, environment={**task.environment, **said})


def security_of(experiment: Experiment, remote: bool) -> Protection | None:
    """None: the processes are on this machine, or the experiment says that it needs none. Raises EngineError."""
    said = experiment.security
    if said.ca:
        return OwnFiles(said)
    if not remote or said.insecure:
        return None
    return RunSecurity(experiment.run.name)


def credentials_of(security: Protection | None) -> Credentials:
    """With which this process asks the run's servers."""
    return NO_TLS if security is None else security.credentials
