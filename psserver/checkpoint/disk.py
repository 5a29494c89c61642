"""The file system as checkpoints use it, and what can be wrong with a checkpoint on it."""

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Protocol


class CheckpointError(Exception):
    """A checkpoint cannot be written, or cannot be used. The text names the file, what was expected and got."""


class UnwritableError(CheckpointError):
    """The folder accepts nothing: the disk is full, read-only or gone. A later attempt may succeed."""


class File(Protocol):
    """A file being written."""

    def write(self, data: memoryview) -> int:
        """Write data. Return the number of bytes written, which may be fewer than given."""
        ...

    def sync(self) -> None:
        """Return once everything written would survive a loss of power."""
        ...

    def close(self) -> None:
        """Close the file; it may be closed already."""
        ...


class Disk(Protocol):
    """A file system. Every method may raise OSError, and may be cut off at any moment.

    Paths are absolute, or relative to the process's directory.
    """

    def make_folder(self, path: Path) -> None:
        """Make a folder and its parents, unless it exists. New names would survive a loss of power."""
        ...

    def names(self, path: Path) -> list[str]:
        """Return the names of files and folders in a folder; empty if the path is no folder."""
        ...

    def create(self, path: Path) -> File:
        """Create an empty file, replacing one that exists."""
        ...

    def open(self, path: Path) -> BinaryIO:
        """Open a regular file for reading, from its beginning."""
        ...

    def size(self, path: Path) -> int:
        """Return the size in bytes."""
        ...

    def free(self, path: Path) -> int:
        """Return the number of bytes that may still be written where that folder is."""
        ...

    def rename(self, old: Path, new: Path) -> None:
        """Rename in one step, replacing what has the new name."""
        ...

    def sync_folder(self, path: Path) -> None:
        """Return once the names in the folder would survive a loss of power."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file; it may not exist."""
        ...

    def is_link(self, path: Path) -> bool:
        """Return True if the name is a symbolic link."""
        ...

    def remove_folder(self, path: Path) -> None:
        """Remove a folder and its contents."""
        ...


# Flush to the disk after this many bytes. The final sync then has little left to do, and the machine neither stalls on
# gigabytes written at once nor loses its page cache to them.
STEADY = 64 << 20


class RealFile:
    """A new `File` of the operating system, replacing one of its name; never writes through a symbolic link."""

    def __init__(self, path: Path, mode: int = 0o600) -> None:
        self._written = self._steady = 0
        path.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._number: int | None = os.open(path, flags, mode)

    def reserve(self, nbytes: int) -> None:
        """Reserve disk space for this many bytes. `sync` releases what was not written. Raises OSError."""
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


class AppendedFile:
    """A file that is only appended to, never through a symbolic link. Every method may raise OSError."""

    def __init__(self, path: Path, mode: int, *, anew: bool) -> None:
        how = os.O_TRUNC if anew else os.O_APPEND
        self._number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | how | os.O_CLOEXEC, mode)

    @property
    def size(self) -> int:
        """The size in bytes."""
        return os.fstat(self._number).st_size

    def write(self, data: bytes | bytearray) -> int:
        """Write data. Return the number of bytes written, which may be fewer than given."""
        return os.write(self._number, data)

    def sync(self) -> None:
        """Return once everything written would survive a loss of power. Any thread may call it."""
        os.fsync(self._number)

    def cut(self, size: int) -> None:
        """Remove what is behind so many bytes."""
        os.ftruncate(self._number, size)

    def close(self) -> None:
        os.close(self._number)


class RealDisk:
    """The disk of the operating system. `mode`: the permissions of new files.

    Checkpoints are readable by their owner only, because saved sessions contain the workers' proofs of membership.
    """

    def __init__(self, mode: int = 0o600) -> None:
        self._mode = mode

    def make_folder(self, path: Path) -> None:
        new = [folder for folder in (path, *path.parents) if not folder.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for folder in reversed(new):
            # A foreign folder may allow creating entries without being readable.
            with suppress(PermissionError):
                self.sync_folder(folder.parent)

    def names(self, path: Path) -> list[str]:
        try:
            return os.listdir(path)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def create(self, path: Path) -> RealFile:
        return RealFile(path, self._mode)

    def append(self, path: Path, *, anew: bool) -> AppendedFile:
        """Open a file to append to. `anew`: an empty one."""
        return AppendedFile(path, self._mode, anew=anew)

    def open(self, path: Path) -> BinaryIO:
        # Non-blocking, so that a pipe of that name cannot make this wait for a writer.
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
                # Some file systems do not sync folders.
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
