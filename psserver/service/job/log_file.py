"""Log files: appended in whole lines, and fenced by generation."""

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from psserver.checkpoint.disk import RealDisk
from psserver.decisions.records import ENCODER
from pswire.exits import ExitCode

# Called before lines are written. Raises LogError if they may not be.
Check = Callable[[], None]


def always() -> None:
    """Allow every write."""


# Where logs are, with the permissions that they have.
LOGS: Final = RealDisk(0o644)
# Bytes that may wait for a flush; a full buffer is written at once.
BUFFERED = 1 << 16


class LogError(OSError):
    """A line that cannot be written; the text names the file and the reason. `code`: the job's exit code for it."""

    code = ExitCode.STORAGE


class JsonLines:
    """A file of JSON lines that is only appended to and never ends in half a line. It has one owner.

    After a LogError it takes nothing more and ends with a whole line.
    """

    def __init__(
        self, path: Path, *, going_on: bool = False, check: Check = always, disk: RealDisk = LOGS
    ) -> None:
        """Empty the file, or append to it if `going_on`. Raises LogError, also for a symbolic link."""
        self._path = path
        self._check = check
        self._waiting = bytearray()
        # Bytes in the file, and those up to the end of its last whole line.
        self._written, self._whole = 0, 0
        self._failure: LogError | None = None
        try:
            self._file = disk.append(path, anew=not going_on)
            self._written = self._whole = self._file.size
        except OSError as error:
            raise self._named(error) from error

    def append(self, value: dict[str, Any]) -> None:
        """Take one line, to be in the file after the next `flush` at the latest. Raises LogError; the line is not
        taken then."""
        self.take(lambda: ENCODER.encode(value))

    def take(self, line: Callable[[], str]) -> None:
        """Take the line that `line()` makes, which may raise ValueError; otherwise as `append`."""
        if self._failure is not None:
            raise self._failure
        try:
            text = line()
        except ValueError as error:
            raise LogError(f"{self._path}: a line is not JSON: {error}") from error
        self._waiting += text.encode()
        self._waiting += b"\n"
        if len(self._waiting) >= BUFFERED:
            self.flush()

    def flush(self) -> None:
        """Hand every line to the operating system. Raises LogError; the whole lines that fitted are kept."""
        if self._failure is not None:
            raise self._failure
        try:
            self._check()
        except LogError as error:
            # The file is no longer this process's to change.
            self._failure = error
            self._waiting.clear()
            raise
        try:
            while self._waiting:
                count = self._file.write(self._waiting)
                end = self._waiting.rfind(b"\n", 0, count)
                if end >= 0:
                    self._whole = self._written + end + 1
                self._written += count
                del self._waiting[:count]
        except OSError as error:
            self._failure = self._named(error)
            self._cut()
            raise self._failure from error

    def sync(self) -> None:
        """Make every line survive a loss of power. Raises LogError."""
        self.flush()
        self.sync_flushed()

    def sync_flushed(self) -> None:
        """Make every line that was flushed survive a loss of power; any thread may call it. Raises LogError."""
        try:
            self._file.sync()
        except OSError as error:
            raise self._named(error) from error

    def _cut(self) -> None:
        """Remove half a line at the end: it would make the whole file unreadable for strict readers."""
        self._waiting.clear()
        # A disk that has become read-only cannot be truncated; readers skip the half line.
        with suppress(OSError):
            self._file.cut(self._whole)

    def _named(self, error: OSError) -> LogError:
        if error.errno == errno.ELOOP:
            return LogError(
                f"{self._path}: is a link: expected none there, for a log is written to no other place"
            )
        return LogError(f"{self._path} cannot be written: {error.strerror or error}")

    def close(self) -> None:
        """Flush and close; a failed file is only closed. Raises LogError."""
        try:
            if self._failure is None:
                self.flush()
        finally:
            self._file.close()


class TakenOverError(LogError):
    """Another coordinator has begun a later generation in this folder."""

    code = ExitCode.REFUSED


class Fence:
    """A fence of the folder: detects a later generation by the file at `path`, which holds the generation's name.

    Make it after this process has written the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._own = self._identity()

    def __call__(self) -> None:
        """Check before each write. Raises TakenOverError."""
        found = self._identity()
        # Without the file no later generation has begun.
        if found is not None and found != self._own:
            raise TakenOverError(
                f"{self._path.parent.parent}: another coordinator has begun a later generation in this folder; "
                "nothing more is written by this one"
            )

    def _identity(self) -> tuple[int, int] | None:
        """Return the identity of the file, which changes because it is written aside and renamed."""
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns
