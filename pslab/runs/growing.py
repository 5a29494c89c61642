"""Files of lines that grow while they are read, that a recovery cuts, and at whose end a kill leaves anything."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

# Bytes by which a place in a file is known again. Lines of a log name the second in which they were written.
KNOWN_BY: Final = 4096
# Bytes that are read at once. What was there before is compared in the same read, so that no cut comes between the two.
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


# Bytes that are looked at from the end; four times as many where no line of those can be read.
TAIL = 1 << 16

# Why a line cannot be read; None where it can.
Problem = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class End:
    """`bytes`: up to the end of the last line that can be read. Behind it are `unreadable` whole lines, of which the
    first has that `problem`, and `rest` bytes of a line without an end."""

    bytes: int
    unreadable: int
    problem: str
    rest: int


def end_of(path: Path, problem: Problem) -> End:
    """Of a file that may still grow, or be cut, meanwhile. Raises OSError."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        length = min(TAIL, size)
        while True:
            file.seek(size - length)
            tail = file.read(length)
            found = _end(tail, size - length, problem)
            if found is not None:
                return found
            length = min(4 * length, size)


def _end(tail: bytes, start: int, problem: Problem) -> End | None:
    """None where more of the file is needed. `start`: bytes before the tail."""
    *lines, rest = tail.split(b"\n")
    end, why = start + len(tail) - len(rest), ""
    for number, line in enumerate(reversed(lines)):
        if start and number == len(lines) - 1:
            # Its beginning may be missing.
            return None
        said = problem(line.decode("utf-8", "replace") + "\n")
        if said is None:
            return End(end, number, why, len(rest))
        end, why = end - len(line) - 1, said
    return None if start else End(0, len(lines), why, len(rest))


def count_lines(path: Path, end: int) -> int:
    """Whole lines in the first `end` bytes. Raises OSError."""
    count = 0
    with path.open("rb") as file:
        while end > 0 and (piece := file.read(min(PIECE, end))):
            count, end = count + piece.count(b"\n"), end - len(piece)
    return count
