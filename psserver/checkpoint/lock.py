"""One coordinator to a folder: a second one, that was started by mistake, is refused."""

import contextlib
import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from psserver.checkpoint import files, generations
from psserver.checkpoint.disk import RealDisk
from psserver.checkpoint.errors import CheckpointError, UnwritableError

NAME = ".lock"


class FolderLock:
    """Held until `close`, or until the process ends in whatever way. Raises CheckpointError."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._former = {path: _content(path) for path in (self.path, folder / generations.FILE)}
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
            # It says to others who holds it, no more: on a full disk it is held all the same.
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def withdraw(self) -> None:
        """The one who holds it was refused before it did anything: its number and its generation are as before."""
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
        """The next one may have it."""
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
    """None: there is no such file."""
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return None
