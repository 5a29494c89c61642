"""The credentials of one run: for its processes, and for the commands that observe it.

A run on several machines gets certificates of its own, or uses the user's. Certificates of its own come from an
authority that lives in this process only; keys reach their processes through the keepers' standard input
(`pslab.launch.remote`), and none is on a disk, in a command line or in the run folder.

Commands that observe a run start in any shell of the same user. While the run goes on, the user's state folder has an
entry for the path of the run folder: an observer's certificate, which may read the status and no more, or the paths of
the user's own files. What the run folder itself says about keys is not trusted, because anybody may have made it. The
run's process keeps a file of the entry locked. A killed run leaves its entry without a lock, and the next command that
looks removes it (`remove_stale`).
"""

import fcntl
import hashlib
import json
import os
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from pslab.authority import Authority
from pslab.experiment import Experiment
from pslab.launch.engines.launcher import EngineError, Task
from pslab.launch.remote.spawn import file
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

    `credentials`: those of this process, which polls the status. `observer`: what other commands of this user present.
    """

    observer: Identity | SecurityOptions | None = None
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
        self.observer = SecurityOptions().with_environment(os.environ).with_section(section).named(OBSERVER)
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


# Names in an entry: of the observer's certificate, and of the file with its options, which the run keeps locked.
NAME = "observer"
OPTIONS = "options.json"


def entry_of(run: Path) -> Path:
    """Return the entry for a run folder, below $XDG_STATE_HOME or ~/.local/state. It may not exist."""
    digest = hashlib.sha256(os.fsencode(run.resolve())).hexdigest()[:32]
    return _folder() / digest


@contextmanager
def observable(run: Path, security: Protection) -> Iterator[None]:
    """Keep an entry for the run while the block lasts. If it cannot be written, print a note and go on."""
    remove_stale()
    with ExitStack() as stack:
        if security.observer is not None:
            entry = entry_of(run)
            try:
                stack.enter_context(_locked_entry(entry, security.observer))
            except OSError as error:
                why = f"{entry}: {error.strerror or error}"
                print(f"note: no other ps-lab command can observe this run: {why}", file=sys.stderr)
        yield


def options_for(run: Path) -> SecurityOptions:
    """Return what to present to the run's servers: nothing if it has no TLS, is over, or is another user's."""
    remove_stale()
    try:
        said = json.loads((entry_of(run) / OPTIONS).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return SecurityOptions()
    return SecurityOptions(**said["options"])


def remove_stale() -> None:
    """Remove the entries of killed runs of this machine; leave what cannot be removed for the next time."""
    if not _folder().is_dir():
        return
    with suppress(OSError), _exclusive():
        for entry in _folder().iterdir():
            if entry.is_dir():
                with suppress(OSError, ValueError):
                    _remove_if_stale(entry)


def _folder() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "paramserver" / "runs"


@contextmanager
def _locked_entry(entry: Path, observer: Identity | SecurityOptions) -> Iterator[None]:
    """Hold the entry's lock. Raises OSError, also when another running run has this entry."""
    with ExitStack() as stack:
        with _exclusive():
            entry.mkdir(mode=0o700, exist_ok=True)
            file = stack.enter_context((entry / OPTIONS).open("a", encoding="utf-8"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            stack.callback(_remove, entry)
            options = observer if isinstance(observer, SecurityOptions) else _write(entry, observer)
            file.truncate(0)
            json.dump({"host": socket.gethostname(), "options": asdict(options.absolute())}, file)
            file.flush()
        yield


def _write(entry: Path, observer: Identity) -> SecurityOptions:
    files = TlsFiles.in_folder(entry, NAME)
    files.write(observer, replace=True)
    return SecurityOptions(str(files.ca), str(files.cert), str(files.key))


def _remove(entry: Path) -> None:
    """Remove the entry of this process's run; what fails is left to `remove_stale`."""
    with suppress(OSError), _exclusive():
        shutil.rmtree(entry)


def _remove_if_stale(entry: Path) -> None:
    """Remove an entry whose run is over. Raises OSError, also if the run goes on."""
    with (entry / OPTIONS).open("r+", encoding="utf-8") as file:
        # On a shared file system the locks of other machines are not always visible.
        if json.load(file)["host"] == socket.gethostname():
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(entry)


@contextmanager
def _exclusive() -> Iterator[None]:
    """Keep other processes of this user from changing entries, for a few milliseconds. Raises OSError."""
    _folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    with (_folder() / ".lock").open("w", encoding="utf-8") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        yield
