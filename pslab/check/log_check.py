"""The base class of all checks of a decision log, and the violations that they report."""

from collections.abc import Iterator
from dataclasses import dataclass

from pslab.runs.fold import LogState
from pslab.runs.log import Line


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that a log must not say, as one sentence.

    `check`: the name of the `LogCheck` that found it. `line` counts from 1; 0 stands for the log as a whole.
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
    """One property of every decision log. Its methods yield one sentence per violation.

    A subclass's `name` is what reports print; its docstring states the property.
    """

    name = "log check"

    def see(self, entry: Line, state: LogState) -> Iterator[str]:
        """Check one entry, in order; `state` is the log before it."""
        return iter(())

    def finish(self, state: LogState) -> Iterator[str]:
        """Check the log as a whole, after its last entry."""
        return iter(())

    def remarks(self, state: LogState) -> Iterator[str]:
        """Yield sentences about what could not be checked. They are no violations."""
        return iter(())
