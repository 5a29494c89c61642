"""The number of a job's generation, on the disk before it is used: no two have one name, whatever dies when."""

from psserver.checkpoint import files
from psserver.checkpoint.errors import CheckpointError
from psserver.checkpoint.store import Store
from pswire.generations import Generation

FILE = "generation"
LARGEST = 4096


def begin(store: Store, job: str) -> str:
    """The first generation of a new job; its name. Raises CheckpointError."""
    return _write(store, Generation.named(job))


def begin_next(store: Store, logged: str, fresh: str) -> str:
    """The name of the one that follows on all that the folder knows of. `logged`: as the log names the job, or empty;
    `fresh`: of a new job, where there was none. Raises CheckpointError."""
    known = [Generation.named(name) for name in (_read(store), logged) if name]
    if not known:
        return begin(store, fresh)
    job = known[-1].job
    number = max(each.number for each in known if each.job == job)
    return _write(store, Generation(job, number + 1))


def _write(store: Store, generation: Generation) -> str:
    path = store.root / FILE
    try:
        store.disk.make_folder(store.root)
        files.write(store.disk, path, [memoryview(generation.name.encode())])
        store.disk.sync_folder(store.root)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error.strerror or error}") from error
    return generation.name


def _read(store: Store) -> str:
    """Empty where there is none."""
    path = store.root / FILE
    try:
        if FILE not in store.disk.names(store.root):
            return ""
        with store.disk.open(path) as file:
            return file.read(LARGEST).decode("utf-8", "replace").strip()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
