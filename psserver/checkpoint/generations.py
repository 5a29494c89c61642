"""The number of a job's generation, on the disk before it is used: no two have one name, whatever dies when."""

import hashlib

from psserver.checkpoint import files
from psserver.checkpoint.errors import CheckpointError, UnwritableError
from psserver.checkpoint.store import Store
from pswire.generations import Generation

FILE = "generation"
LARGEST = 4096
# Beyond the last generation that is known where the file is damaged: more than a folder can have had since.
LEAP = 100_000


def begin(store: Store, job: str) -> str:
    """The first generation of a new job; its name. Raises CheckpointError."""
    return _write(store, Generation.named(job))


def damaged(store: Store) -> bool:
    """There was a name, which cannot be read any more. Raises CheckpointError."""
    return _read(store)[1]


def begin_next(store: Store, logged: str, fresh: str) -> str:
    """The name of the one that follows on all that the folder knows of. `logged`: as the log names the job, or empty;
    `fresh`: of a new job, where there was none. Raises CheckpointError."""
    written, damaged = _read(store)
    names = [*(name.partition("-")[2] for name in store.names()), written, logged]
    known = [Generation.named(name) for name in names if name]
    if not known:
        return begin(store, fresh)
    job = known[-1].job
    number = max(each.number for each in known if each.job == job)
    # Whoever was begun behind the last one that can still be read is behind this one.
    return _write(store, Generation(job, number + (LEAP if damaged else 1)))


def _write(store: Store, generation: Generation) -> str:
    path, name = store.root / FILE, generation.name
    try:
        store.disk.make_folder(store.root)
        files.write(store.disk, path, [memoryview(f"{name} {_digest(name)}\n".encode())])
        store.disk.sync_folder(store.root)
    except OSError as error:
        raise UnwritableError(f"{path} cannot be written: {error.strerror or error}") from error
    return name


def _read(store: Store) -> tuple[str, bool]:
    """The name, empty where there is none; and whether there was one that cannot be read any more."""
    path = store.root / FILE
    try:
        if FILE not in store.disk.names(store.root):
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
