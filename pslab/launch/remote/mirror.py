"""Mirror of a run folder that the launcher cannot see: sends what is written on the node, as it grows.

Standard library only.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from pslab.runs.growing import Seen

# Bytes of one frame.
PIECE: Final = 1 << 20
# A file up to this size is sent at every change, a larger one only at the end.
SMALL: Final = 1 << 16
# Suffix of files that only grow while a job runs, unless a recovery truncates them.
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
        # Positions in growing files.
        self._positions: dict[str, Seen] = {}

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
            now = (facts.st_size, facts.st_mtime_ns)
            if self._sent.get(name) == now:
                return
            if path.suffix == GROWING:
                self._send_growth(name, file)
            elif final or now[0] <= SMALL:
                self._send_whole(name, file, now[0])
            else:
                return
        self._sent[name] = now

    def _send_growth(self, name: str, file: BinaryIO) -> None:
        """Send new bytes, or everything again if a recovery has truncated the file."""
        if name not in self._positions:
            # Create the file even if it is still empty.
            self._send(name, 0, b"", False)
        position = self._positions.setdefault(name, Seen())
        while (piece := position.more(file, PIECE)) != b"":
            if piece is None:
                position = self._positions[name] = Seen()
                # Truncate first, so that no reader sees a mixture of old and new.
                self._send(name, 0, b"", True)
                continue
            self._send(name, position.offset, piece, False)
            position.take(piece)

    def _send_whole(self, name: str, file: BinaryIO, size: int) -> None:
        offset = 0
        while True:
            piece = file.read(min(PIECE, size - offset))
            last = offset + len(piece) >= size or not piece
            self._send(name, offset, piece, last)
            offset += len(piece)
            if last:
                return
