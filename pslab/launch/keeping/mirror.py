"""A run folder on a node whose launcher does not see it: what is written there is sent, as it grows. Standard library
only."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

# Of a frame.
PIECE: Final = 1 << 20
# A file up to this size is sent at every change, a larger one at the end.
SMALL: Final = 1 << 16
# Files that only grow while a job runs.
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
            size, _ = self._sent.get(name, (0, 0))
            if self._sent.get(name) == now:
                return
            grows = path.suffix == GROWING and facts.st_size >= size
            if not (grows or final or facts.st_size <= SMALL):
                return
            offset = size if grows else 0
            file.seek(offset)
            while True:
                piece = file.read(min(PIECE, now[0] - offset))
                last = offset + len(piece) >= now[0] or not piece
                self._send(name, offset, piece, last and not grows)
                offset += len(piece)
                if last:
                    break
        self._sent[name] = (offset, now[1])
