"""How far a file was read that only grows, unless a recovery cuts it and it grows again. Standard library only."""

from typing import BinaryIO, Final

# Bytes by which a place in a file is known again. Lines of a log name the second in which they were written.
KNOWN_BY: Final = 4096
# Bytes that are read at once: what was there before is compared in the same read, so that no cut comes between the two.
PIECE: Final = 1 << 20


class Seen:
    """The first `offset` bytes of a file, known by the last ones of them."""

    def __init__(self) -> None:
        self.offset = 0
        self._last = b""

    def more(self, file: BinaryIO, most: int = PIECE) -> bytes | None:
        """What follows on them, `most` bytes at once; empty at the end. None: the file has other bytes there, or ends
        before."""
        file.seek(self.offset - len(self._last))
        found = file.read(len(self._last) + most)
        return found[len(self._last) :] if found.startswith(self._last) else None

    def take(self, data: bytes) -> None:
        """They have been read, too."""
        self.offset += len(data)
        self._last = (self._last + data)[-KNOWN_BY:]
