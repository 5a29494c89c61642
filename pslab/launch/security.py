"""The credentials of one run: for its processes, and for the commands that observe it.

A run on several machines gets certificates of its own, or uses the user's. Certificates of its own come from an
authority that lives in this process only; keys reach their processes through the keepers' standard input
(`pslab.launch.remote`), and none of them is on a disk or in a command line.

Commands that observe a run start in any shell of the same user. While a run with certificates of its own goes on, its
folder has one more, which may read the status and no more; only this user can read its key. What is left of it in the
folder of a killed run opens nothing: the authority died with the run.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from pslab.authority import Authority
from pslab.experiment import Experiment
from pslab.launch.engines.launcher import EngineError, Task
from pslab.launch.remote.spawn import file
from pslab.runs.folder import OBSERVER_FILES
from pswire.config.run_sections import SecuritySection
from pswire.security.credentials import NO_TLS, Credentials, LiveIdentity
from pswire.security.files import TlsFiles
from pswire.security.identity import Identity
from pswire.security.names import IdentityError, Role, cluster_named_after
from pswire.security.settings import (
    OBSERVER,
    VARIABLES,
    SecurityError,
    SecurityOptions,
    credentials_for,
)

# File names by the variable that tells a process the path.
_FILES: Final = {"PS_TLS_CA": "ca.pem", "PS_TLS_CERT": "cert.pem", "PS_TLS_KEY": "key.pem"}
# The same variables in the environment of a process, with placeholders.
ENVIRONMENT: Final = {variable: file(name) for variable, name in _FILES.items()}


class Protection:
    """The identities of a run's processes. This class: none, for a run on this machine.

    `credentials`: those of this process, which polls the status. `observer`: what other commands of this user present,
    if it was made for this run.
    """

    observer: Identity | None = None
    credentials = NO_TLS

    def protected(self, task: Task, role: Role, name: str) -> Task:
        """Return the task with the credentials of the process of that role and name."""
        return task


class RunSecurity(Protection):
    """Certificates made for this run alone."""

    def __init__(self, run: str) -> None:
        """Make a run's certificates. Raises EngineError when they cannot be made."""
        try:
            self._authority = Authority.make(cluster_named_after(run))
            observer = self._authority.issue(Role.OBSERVER, "ps-lab")
        except IdentityError as error:
            raise EngineError(
                f"a run on several machines makes certificates for itself: {error}, or set security.insecure=true on "
                "a network where you trust everybody"
            ) from error
        self.observer = observer
        self.credentials = Credentials(LiveIdentity(observer), role=Role.OBSERVER)

    def protected(self, task: Task, role: Role, name: str) -> Task:
        """Implement `Protection.protected`."""

        def files(address: str) -> dict[str, bytes]:
            return {**task.files(address), **self.files(role, name, address)}

        return replace(task, environment={**task.environment, **ENVIRONMENT}, files=files)

    def files(self, role: Role, name: str, address: str) -> Mapping[str, bytes]:
        """Return the files of a process on a node with that address, by name. Raises IdentityError."""
        hosts = (address,) if role is Role.SERVER else ()
        identity = self._authority.issue(role, name, hosts)
        contents = (identity.ca, identity.cert, identity.key.reveal())
        return dict(zip(_FILES.values(), contents, strict=True))


class OwnFiles(Protection):
    """Files that the experiment's [security] names, at the same paths on all nodes."""

    def __init__(self, section: SecuritySection) -> None:
        """Read the experiment's files. Raises EngineError when this process cannot use its own."""
        self._section = section
        try:
            self.credentials = credentials_for(
                Role.OBSERVER, SecurityOptions(), os.environ, section, name=OBSERVER
            )
        except (IdentityError, SecurityError) as error:
            raise EngineError(f"[security]: ps-lab observes the run as {OBSERVER}: {error}") from error

    def protected(self, task: Task, role: Role, name: str) -> Task:
        """Implement `Protection.protected` by the environment, because a script does not read the experiment file."""
        own = SecurityOptions().with_section(self._section).named(name)
        paths = {variable: getattr(own, option) for option, variable in VARIABLES.items()}
        given = {variable: path for variable, path in paths.items() if path}
        return replace(task, environment={**task.environment, **given})


def security_of(experiment: Experiment, remote: bool) -> Protection:
    """Return the run's protection: none on this machine or with security.insecure. Raises EngineError."""
    section = experiment.security
    if section.ca:
        return OwnFiles(section)
    return RunSecurity(experiment.run.name) if remote and not section.insecure else Protection()


@contextmanager
def observable(run: Path, security: Protection) -> Iterator[None]:
    """Keep the observer's certificate in the run's folder while the block lasts. Raises OSError."""
    folder = run / OBSERVER_FILES
    if security.observer is not None:
        folder.mkdir(mode=0o700, exist_ok=True)
        TlsFiles.in_folder(folder, OBSERVER).write(security.observer, replace=True)
    try:
        yield
    finally:
        if security.observer is not None:
            shutil.rmtree(folder, ignore_errors=True)


def options_for(run: Path) -> SecurityOptions:
    """Return what to present to the run's servers: nothing if its folder has no certificate for that."""
    folder = run / OBSERVER_FILES
    files = TlsFiles.in_folder(folder, OBSERVER)
    # A link in a folder of somebody else's may lead to this user's own files; a run of another user has no key for it.
    linked = any(each.is_symlink() for each in (folder, files.ca, files.cert, files.key))
    if linked or not os.access(files.key, os.R_OK):
        return SecurityOptions()
    return SecurityOptions(str(files.ca), str(files.cert), str(files.key))
