"""Checks of the log as a sequence: numbering, time, first and last entry."""

from collections.abc import Iterator

from pslab.check.ledger import Ledger
from pslab.check.log_check import LogCheck
from pslab.runs.log import Line
from pswire.decisions import entries as e


class Indices(LogCheck):
    """Entries are numbered 0, 1, 2, ... without gap or repetition."""

    name = "indices"

    def __init__(self) -> None:
        self._next = 0

    def see(self, entry: Line, ledger: Ledger) -> Iterator[str]:
        if entry.i != self._next:
            yield f"index should be {self._next}, got {entry.i}: entries are missing or out of order"
        # Going on from what was found reports one gap once.
        self._next = entry.i + 1

    def skip(self, index: int | None) -> None:
        """A line could not be read; its own index, where known, keeps the count."""
        self._next = (self._next if index is None else index) + 1


class Clock(LogCheck):
    """Time never goes back."""

    name = "time"

    def __init__(self) -> None:
        self._last = 0.0

    def see(self, entry: Line, ledger: Ledger) -> Iterator[str]:
        if entry.t < self._last:
            yield f"t goes back from {self._last} s to {entry.t} s"
        self._last = entry.t


class Frame(LogCheck):
    """The job is described once, first; it stops at most once, and nothing is decided afterwards."""

    name = "first and last"

    def see(self, entry: Line, ledger: Ledger) -> Iterator[str]:
        first = ledger.entries == 0
        if first and not isinstance(entry.fact, e.Job):
            yield f"the first entry should be of kind job, got {entry.kind}"
        if not first and isinstance(entry.fact, e.Job):
            yield "the job is described a second time"
        if isinstance(entry.fact, e.Job) and entry.fact.format != e.FORMAT:
            yield f"the log has format {entry.fact.format}, this check knows format {e.FORMAT}"
        if ledger.stop is not None:
            match entry.fact:
                case e.Stop():
                    yield "the job stops a second time"
                case (
                    e.Initialise()
                    | e.Install()
                    | e.Grant()
                    | e.Commit()
                    | e.Fold()
                    | e.Apply()
                    | e.Refuse()
                    | e.Drop()
                    | e.Note()
                ):
                    yield f"{entry.kind} after the job stopped"

    def finish(self, ledger: Ledger) -> Iterator[str]:
        if ledger.entries == 0:
            yield "the log is empty"
