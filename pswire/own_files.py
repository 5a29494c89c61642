"""Files of a run folder, in which others may have put links: nothing is written outside the folder."""

import os
from pathlib import Path
from typing import BinaryIO, Final

# Permissions of a new file, less the umask.
_USUAL: Final = 0o666


def new_file(path: Path, mode: int = _USUAL) -> BinaryIO:
    """Open a new file for writing, replacing a file or link of its name. Raises OSError."""
    path.unlink(missing_ok=True)
    return os.fdopen(_opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb")


def same_file(path: Path, how: int = 0, buffering: int = -1, mode: int = _USUAL) -> BinaryIO:
    """Open a file for writing without truncating it, replacing a link. `how`: os.O_APPEND or 0. Raises OSError."""
    if path.is_symlink():
        path.unlink()
    return os.fdopen(_opened(path, os.O_WRONLY | os.O_CREAT | how, mode), "wb", buffering)


def write_file(path: Path, content: str | bytes, mode: int = _USUAL) -> None:
    """Write a new file with this content, as `new_file`. Raises OSError."""
    with new_file(path, mode) as file:
        file.write(content if isinstance(content, bytes) else content.encode())


def _opened(path: Path, flags: int, mode: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
