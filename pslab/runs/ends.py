"""Up to where a file of lines can be read: a kill or a loss of power may leave anything behind that."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# Bytes that are looked at from the end; four times as many where no line of those can be read.
TAIL = 1 << 16
# Bytes that are looked at, at once, where only lines are counted.
PIECE = 1 << 20

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
