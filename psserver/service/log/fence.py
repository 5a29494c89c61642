"""A coordinator that stood still while another one went on in its folder writes nothing more there.

The lock of the folder keeps two apart, on disks whose locks hold. This is for the others, and for a lock that
somebody removed: each generation writes its name to a file before it writes anything else.
"""

import os
from pathlib import Path

from psserver.service.log.json_lines import LogError
from pswire.exits import ExitCode


class TakenOverError(LogError):
    """Another coordinator has begun a later generation in this folder."""

    code = ExitCode.REFUSED


class Fence:
    """Made once the generation's name is in the file at `path`, by the process that wrote it there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._own = self._identity()

    def __call__(self) -> None:
        """Before each write. Raises TakenOverError."""
        found = self._identity()
        # Without the file nobody has begun a later one.
        if found is not None and found != self._own:
            raise TakenOverError(
                f"{self._path.parent.parent}: another coordinator has begun a later generation in this folder; "
                "nothing more is written by this one"
            )

    def _identity(self) -> tuple[int, int] | None:
        """Of the file: it is written aside, and renamed."""
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns
