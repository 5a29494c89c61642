"""What commands that look at a run show to its servers: they run in any shell of the user who started it.

As long as the run goes on, the user's state folder holds it, by the path of the run folder: the certificate of an
observer, which may read the status and no more, or the paths of the user's own files. The run folder holds no key, and
what it says of keys and tokens is not believed: it may be anybody's.

Beside it is a file that the run's process keeps locked. A run that was killed has left both, and no lock: the next
command that looks here removes them (`clear`).
"""

import fcntl
import hashlib
import json
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from pslab.launch.security import Protection
from pswire.security.files import TlsFiles
from pswire.security.identity import Identity
from pswire.security.settings import SecurityOptions

NAME = "observer"
OPTIONS = "options.json"
LOCK = ".lock"


def place_of(run: Path) -> Path:
    """Where the certificate for a run folder is, if there is one: below $XDG_STATE_HOME, else ~/.local/state."""
    digest = hashlib.sha256(os.fsencode(run.resolve())).hexdigest()[:32]
    return _folder() / digest


@contextmanager
def remembered(run: Path, security: Protection | None) -> Iterator[None]:
    """For as long as the block lasts. Where this user cannot write, a note says that nobody else can look."""
    clear()
    if security is None:
        yield
        return
    place = place_of(run)
    with ExitStack() as stack:
        try:
            stack.enter_context(_kept(place, security.observer))
        except OSError as error:
            said = f"{place}: {error.strerror or error}"
            print(f"note: ps-lab status will not be answered elsewhere: {said}", file=sys.stderr)
        yield


def options_for(run: Path) -> SecurityOptions:
    """What to show to the run's servers; nothing for a run without TLS, over, or not started by this user."""
    clear()
    try:
        return SecurityOptions(**json.loads((place_of(run) / OPTIONS).read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        return SecurityOptions()


def clear() -> None:
    """Remove what runs have left that were killed, of this machine: what another one has locked is not always seen on
    a shared file system. What cannot be removed stays for the next time."""
    if not _folder().is_dir():
        return
    with suppress(OSError), _alone():
        for lock in sorted(_folder().glob(f"?*{LOCK}")):
            # One that cannot be removed is in nobody's way.
            with suppress(OSError):
                _clear(lock)


def _folder() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "paramserver" / "runs"


@contextmanager
def _kept(place: Path, observer: Identity | SecurityOptions) -> Iterator[None]:
    """Raises OSError, also where another run that goes on has this place."""
    with ExitStack() as stack:
        with _alone():
            lock = stack.enter_context(_lock_of(place).open("a+", encoding="utf-8"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lock.truncate(0)
            lock.write(socket.gethostname())
            lock.flush()
            stack.callback(_remove, place)
            place.mkdir(mode=0o700, exist_ok=True)
            options = observer if isinstance(observer, SecurityOptions) else _written(place, observer)
            (place / OPTIONS).write_text(json.dumps(asdict(options.absolute())), encoding="utf-8")
        yield


def _written(place: Path, observer: Identity) -> SecurityOptions:
    files = TlsFiles.in_folder(place, NAME)
    files.write(observer, replace=True)
    return SecurityOptions(str(files.ca), str(files.cert), str(files.key))


def _lock_of(place: Path) -> Path:
    return place.with_name(place.name + LOCK)


def _remove(place: Path) -> None:
    """Of this process's own run."""
    # What stays is cleared later.
    with suppress(OSError), _alone():
        shutil.rmtree(place)
        _lock_of(place).unlink()


def _clear(lock: Path) -> None:
    """What belongs to that file, if its run is over. Raises OSError."""
    with lock.open("r+", encoding="utf-8") as file:
        if file.read() != socket.gethostname():
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # The run goes on.
            return
        place = lock.with_name(lock.name.removesuffix(LOCK))
        if place.is_dir():
            shutil.rmtree(place)
        lock.unlink()


@contextmanager
def _alone() -> Iterator[None]:
    """No other process of this user makes or removes one meanwhile: a few milliseconds. Raises OSError."""
    _folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    with (_folder() / LOCK).open("w", encoding="utf-8") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        yield
