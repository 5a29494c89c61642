"""A promise: something that every decision log keeps. One small class each."""

from collections.abc import Iterator
from dataclasses import dataclass

from pslab.check.ledger import Ledger
from pslab.runs.log import Entry


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise: where, and one sentence. `line` counts from 1; 0 means the log as a whole."""

    promise: str
    line: int
    index: int | None
    message: str

    def __str__(self) -> str:
        where = "whole log" if self.line == 0 else f"line {self.line}"
        entry = "" if self.index is None else f", entry {self.index}"
        return f"{where}{entry}: {self.message}"


class LogCheck:
    """Sees every entry in order together with the ledger before it, and yields one sentence per breach.

    A subclass's `name` is what reports print; the docstring's first line is the promise.
    """

    name = "promise"

    def see(self, entry: Entry, ledger: Ledger) -> Iterator[str]:
        """Sentences about this entry; `ledger` does not contain it yet."""
        return iter(())

    def finish(self, ledger: Ledger) -> Iterator[str]:
        """Sentences about the whole log, after its last entry."""
        return iter(())

    def remarks(self, ledger: Ledger) -> Iterator[str]:
        """Sentences about what could not be checked, after the last entry. They break nothing."""
        return iter(())
