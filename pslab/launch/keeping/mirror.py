"""A run folder on a node whose launcher does not see it: what is written there is sent, as it grows. Standard library
only."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from pslab.runs.growing import Seen

# Of a frame.
PIECE: Final = 1 << 20
# A file up to this size is sent at every change, a larger one at the end.
SMALL: Final = 1 << 16
# Files that only grow while a job runs, unless a recovery cuts them.
GROWING: Final = ".jsonl"
# Seconds between two looks.
EVERY: Final = 0.5

# Path, offset, content, whether it ends there.
Send = Callable[[str, int, bytes, bool], None]


class Mirror:
    """`send` is given every part of every file of `root` that is new. Links are not followed."""

    def __init__(self, root: Path, send: Send) -> None:
        self._root, self._send = root, send
        # Path -> size and time of change, as they were last sent.
        self._sent: dict[str, tuple[int, int]] = {}
        # Of files that grow.
        self._seen: dict[str, Seen] = {}

    def look(self, final: bool = False) -> None:
        """Send what has changed; with `final`, whatever its size, for nothing changes any more."""
        for path in self._files():
            try:
                self._file(path, final)
            except FileNotFoundError:
                # It was renamed or removed between the look and the opening.
                continue

    def _files(self) -> Iterator[Path]:
        for folder, folders, names in os.walk(self._root):
            folders.sort()
            yield from (path for name in sorted(names) if not (path := Path(folder) / name).is_symlink())

    def _file(self, path: Path, final: bool) -> None:
        name = path.relative_to(self._root).as_posix()
        with path.open("rb") as file:
            facts = os.fstat(file.fileno())
            now = (facts.st_size, facts.st_mtime_ns)
            if self._sent.get(name) == now:
                return
            if path.suffix == GROWING:
                self._grown(name, file)
            elif final or now[0] <= SMALL:
                self._whole(name, file, now[0])
            else:
                return
        self._sent[name] = now

    def _grown(self, name: str, file: BinaryIO) -> None:
        """What is new of it. One that a recovery has cut is sent anew."""
        if name not in self._seen:
            # It is there, even if nothing is in it yet.
            self._send(name, 0, b"", False)
        seen = self._seen.setdefault(name, Seen())
        while (piece := seen.more(file, PIECE)) != b"":
            if piece is None:
                seen = self._seen[name] = Seen()
                # Whoever reads it there sees it cut, not half of each.
                self._send(name, 0, b"", True)
                continue
            self._send(name, seen.offset, piece, False)
            seen.take(piece)

    def _whole(self, name: str, file: BinaryIO, size: int) -> None:
        offset = 0
        while True:
            piece = file.read(min(PIECE, size - offset))
            last = offset + len(piece) >= size or not piece
            self._send(name, offset, piece, last)
            offset += len(piece)
            if last:
                return
