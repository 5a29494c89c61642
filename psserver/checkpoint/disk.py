"""What a store asks of a file system. All of it may fail with OSError, and may be cut off at any moment."""

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Protocol


class File(Protocol):
    """A file that is being written."""

    def write(self, data: memoryview) -> int:
        """Bytes that were taken: perhaps fewer than there are."""
        ...

    def sync(self) -> None:
        """Returns once what was written would survive a loss of power."""
        ...

    def close(self) -> None:
        """The file may be closed already."""
        ...


class Disk(Protocol):
    """Paths are absolute, or from the process's directory."""

    def make_folder(self, path: Path) -> None:
        """With its parents; it may be there. The names of those that are new would survive a loss of power."""
        ...

    def names(self, path: Path) -> list[str]:
        """Of files and folders in a folder; none where there is no such folder, or a file."""
        ...

    def create(self, path: Path) -> File:
        """An empty file, also in place of one that is there."""
        ...

    def open(self, path: Path) -> BinaryIO:
        """A regular file, for reading, from its beginning."""
        ...

    def size(self, path: Path) -> int:
        """In bytes."""
        ...

    def free(self, path: Path) -> int:
        """Bytes that may still be written where that folder is."""
        ...

    def rename(self, old: Path, new: Path) -> None:
        """In one step, in place of what has the new name."""
        ...

    def sync_folder(self, path: Path) -> None:
        """Returns once the names in it would survive a loss of power."""
        ...

    def remove(self, path: Path) -> None:
        """A file; it may be gone."""
        ...

    def is_link(self, path: Path) -> bool:
        """The name stands for something elsewhere."""
        ...

    def remove_folder(self, path: Path) -> None:
        """With what is left in it."""
        ...


# Bytes after which what was written goes to the disk: the end has little left to wait for, and the rest of the machine
# is not held up by gigabytes that the system has to write at once, nor loses what it has cached to them.
STEADY = 64 << 20


class RealFile:
    """A new `File` of the system, in place of what has its name: nothing is written through a link that lies there."""

    def __init__(self, path: Path, mode: int = 0o600) -> None:
        self._written = self._steady = 0
        path.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._number: int | None = os.open(path, flags, mode)

    def reserve(self, nbytes: int) -> None:
        """Have the disk keep room for so many bytes. `sync` gives back what was not written. Raises OSError."""
        assert self._number is not None
        os.posix_fallocate(self._number, 0, nbytes)

    def write(self, data: memoryview) -> int:
        assert self._number is not None
        taken = os.write(self._number, data)
        self._written += taken
        if self._written - self._steady >= STEADY:
            os.fdatasync(self._number)
            os.posix_fadvise(self._number, self._steady, self._written - self._steady, os.POSIX_FADV_DONTNEED)
            self._steady = self._written
        return taken

    def sync(self) -> None:
        assert self._number is not None
        os.ftruncate(self._number, self._written)
        os.fsync(self._number)

    def close(self) -> None:
        if self._number is not None:
            number, self._number = self._number, None
            os.close(number)


class RealDisk:
    """The system's own. `mode`: of new files. Those of checkpoints are readable by their owner only: saved sessions are
    what workers prove themselves by."""

    def __init__(self, mode: int = 0o600) -> None:
        self._mode = mode

    def make_folder(self, path: Path) -> None:
        new = [folder for folder in (path, *path.parents) if not folder.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for folder in reversed(new):
            # A folder of others, in which one may make what is one's own and see nothing.
            with suppress(PermissionError):
                self.sync_folder(folder.parent)

    def names(self, path: Path) -> list[str]:
        try:
            return os.listdir(path)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def create(self, path: Path) -> RealFile:
        return RealFile(path, self._mode)

    def open(self, path: Path) -> BinaryIO:
        # Without waiting for whoever would write to a pipe of that name.
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(number).st_mode):
            os.close(number)
            raise OSError(errno.EINVAL, "is no regular file", str(path))
        return os.fdopen(number, "rb")

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def free(self, path: Path) -> int:
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def rename(self, old: Path, new: Path) -> None:
        old.replace(new)

    def sync_folder(self, path: Path) -> None:
        with _folder(path) as number:
            try:
                os.fsync(number)
            except OSError as error:
                # Some file systems have no such thing for folders.
                if error.errno != errno.EINVAL:
                    raise

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def is_link(self, path: Path) -> bool:
        return path.is_symlink()

    def remove_folder(self, path: Path) -> None:
        shutil.rmtree(path)


@contextmanager
def _folder(path: Path) -> Iterator[int]:
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield number
    finally:
        os.close(number)
