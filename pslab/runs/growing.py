"""The end of a file of lines that may still grow, and that a kill may have damaged."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# Bytes per read.
PIECE: Final = 1 << 20
# Bytes of the end that are searched for a readable line; four times as many if they have none.
TAIL = 1 << 16

# From a line to why it cannot be read; None if it can.
Problem = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class FileEnd:
    """The end of a file. `bytes`: up to the end of the last readable line. After it there are `unreadable` whole lines,
    the first with that `problem`, and `rest` bytes of an incomplete line."""

    bytes: int
    unreadable: int
    problem: str
    rest: int


def end_of(path: Path, problem: Problem) -> FileEnd:
    """Return the end of a file that may grow or be truncated meanwhile. Raises OSError."""
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


def _end(tail: bytes, start: int, problem: Problem) -> FileEnd | None:
    """Return the end, or None if a longer tail is needed. `start`: bytes before the tail."""
    *lines, rest = tail.split(b"\n")
    end, why = start + len(tail) - len(rest), ""
    for number, line in enumerate(reversed(lines)):
        if start and number == len(lines) - 1:
            # Its beginning may be missing.
            return None
        why_not = problem(line.decode("utf-8", "replace") + "\n")
        if why_not is None:
            return FileEnd(end, number, why, len(rest))
        end, why = end - len(line) - 1, why_not
    return None if start else FileEnd(0, len(lines), why, len(rest))


def count_lines(path: Path, end: int) -> int:
    """Count the whole lines in the first `end` bytes. Raises OSError."""
    count = 0
    with path.open("rb") as file:
        while end > 0 and (piece := file.read(min(PIECE, end))):
            count, end = count + piece.count(b"\n"), end - len(piece)
    return count
