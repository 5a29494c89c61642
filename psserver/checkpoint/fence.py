"""Fences of a run folder: one coordinator at a time, and one name per generation.

A second coordinator that was started by mistake is refused. The number of a job's generation is on the disk before it
is used, so that no two generations share a name, whatever crashes when.
"""

import contextlib
import fcntl
import hashlib
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from psserver.checkpoint import files
from psserver.checkpoint.disk import CheckpointError, RealDisk, UnwritableError
from psserver.checkpoint.store import Store
from pswire.generations import Generation

LOCK, GENERATION = ".lock", "generation"
LARGEST = 4096
# If the file is damaged, skip this many generations: more than the folder can have had since the last known one.
LEAP = 100_000


class FolderLock:
    """A lock on a folder, held until `close` or the end of the process. Raises CheckpointError."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK
        self._former = {path: _content(path) for path in (self.path, folder / GENERATION)}
        try:
            RealDisk().make_folder(folder)
            self._file: int | None = os.open(
                self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            raise UnwritableError(f"{folder}: cannot be written to: {error.strerror or error}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._file, 20, 0).decode("ascii", "replace").strip() or "unknown"
            self.close()
            raise CheckpointError(
                f"{folder}: another coordinator (process {holder}) works in it; end that one, or name another folder"
            ) from error
        with contextlib.suppress(OSError):
            # The process id is only for messages; on a full disk the lock holds without it.
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def withdraw(self) -> None:
        """Restore the recorded process id and generation: the holder was refused before it did anything."""
        with contextlib.suppress(OSError, CheckpointError):
            for path, former in self._former.items():
                if former is None:
                    path.unlink(missing_ok=True)
                elif path != self.path:
                    files.write(RealDisk(), path, [memoryview(former)])
                elif self._file is not None:
                    os.ftruncate(self._file, 0)
                    os.pwrite(self._file, former, 0)

    def close(self) -> None:
        """Release the lock."""
        if self._file is not None:
            number, self._file = self._file, None
            os.close(number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.withdraw()
        self.close()


def _content(path: Path) -> bytes | None:
    """Return the file's content, or None if there is no such file."""
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return None


def begin(store: Store, job: str) -> str:
    """Record the first generation of a new job, and return its name. Raises CheckpointError."""
    return _write(store, Generation.named(job))


def damaged(store: Store) -> bool:
    """Return True if a name was recorded but can no longer be read. Raises CheckpointError."""
    return _read(store)[1]


def begin_next(store: Store, logged: str, fresh: str) -> str:
    """Record and return the name of the generation after all that the folder knows.

    `logged`: the job's name in the log, or empty. `fresh`: the name of a new job, used if there was none. Raises
    CheckpointError.
    """
    written, damaged = _read(store)
    names = [*(name.partition("-")[2] for name in store.names()), written, logged]
    known = [Generation.named(name) for name in names if name]
    if not known:
        return begin(store, fresh)
    job = known[-1].job
    number = max(each.number for each in known if each.job == job)
    # A leap also passes the generations between the last readable name and the damaged one.
    return _write(store, Generation(job, number + (LEAP if damaged else 1)))


def _write(store: Store, generation: Generation) -> str:
    path, name = store.root / GENERATION, generation.name
    try:
        store.disk.make_folder(store.root)
        files.write(store.disk, path, [memoryview(f"{name} {_digest(name)}\n".encode())])
        store.disk.sync_folder(store.root)
    except OSError as error:
        raise UnwritableError(f"{path} cannot be written: {error.strerror or error}") from error
    return name


def _read(store: Store) -> tuple[str, bool]:
    """Return the recorded name, empty if there is none, and whether one was recorded but can no longer be read."""
    path = store.root / GENERATION
    try:
        if GENERATION not in store.disk.names(store.root):
            return "", False
        with store.disk.open(path) as file:
            text = file.read(LARGEST).decode("utf-8", "replace")
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    name, _, digest = text.strip().rpartition(" ")
    if name and digest == _digest(name):
        return name, False
    return "", True


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()
