"""The base class of all checks of a decision log, and what they report."""

from collections.abc import Iterator
from dataclasses import dataclass

from pslab.runs.fold import Fold
from pslab.runs.log import Line


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that a log should not say: where, and one sentence. `line` counts from 1; 0 is the log as a whole.

    `check`: the name of the `LogCheck` that found it.
    """

    check: str
    line: int
    index: int | None
    message: str

    def __str__(self) -> str:
        where = "whole log" if self.line == 0 else f"line {self.line}"
        entry = "" if self.index is None else f", entry {self.index}"
        return f"{where}{entry}: {self.message}"


class LogCheck:
    """One property of every decision log. Receives each entry in order together with the state before it, and
    yields one sentence per violation.

    A subclass's `name` is what reports print; its docstring states the property.
    """

    name = "log check"

    def see(self, entry: Line, state: Fold) -> Iterator[str]:
        """Sentences about this entry; `state` does not contain it yet."""
        return iter(())

    def finish(self, state: Fold) -> Iterator[str]:
        """Sentences about the whole log, after its last entry."""
        return iter(())

    def remarks(self, state: Fold) -> Iterator[str]:
        """Sentences about what could not be checked, after the last entry. They are no violations."""
        return iter(())
