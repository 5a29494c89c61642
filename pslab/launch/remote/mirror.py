"""Mirror of a run folder that the launcher cannot see: sends what is written on the node, as it grows.

Standard library only.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

# Bytes of one frame.
PIECE: Final = 1 << 20
# A file up to this size is sent at every change, a larger one only at the end.
SMALL: Final = 1 << 16
# Suffix of files that only grow: a job that may go back has a folder that all nodes see.
GROWING: Final = ".jsonl"
# Seconds between two scans.
EVERY: Final = 0.5

# (path, offset, content, whether the file ends there).
Send = Callable[[str, int, bytes, bool], None]


class Mirror:
    """Calls `send` with every new part of every file below `root`. It does not follow links."""

    def __init__(self, root: Path, send: Send) -> None:
        self._root, self._send = root, send
        # Path -> size and modification time when it was last sent.
        self._sent: dict[str, tuple[int, int]] = {}

    def send_changes(self, final: bool = False) -> None:
        """Send what has changed; with `final`, large files too, because nothing changes any more."""
        for path in self._files():
            try:
                self._send_file(path, final)
            except FileNotFoundError:
                # It was renamed or removed between the scan and the open.
                continue

    def _files(self) -> Iterator[Path]:
        for folder, folders, names in os.walk(self._root):
            folders.sort()
            yield from (path for name in sorted(names) if not (path := Path(folder) / name).is_symlink())

    def _send_file(self, path: Path, final: bool) -> None:
        name = path.relative_to(self._root).as_posix()
        with path.open("rb") as file:
            facts = os.fstat(file.fileno())
            size, now = facts.st_size, (facts.st_size, facts.st_mtime_ns)
            grows = path.suffix == GROWING
            if self._sent.get(name) == now or not (grows or final or size <= SMALL):
                return
            offset = self._sent[name][0] if grows and name in self._sent else 0
            file.seek(offset)
            last = False
            while not last:
                piece = file.read(min(PIECE, size - offset))
                last = offset + len(piece) >= size or not piece
                self._send(name, offset, piece, last)
                offset += len(piece)
        self._sent[name] = now
