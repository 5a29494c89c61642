"""Checks of updates that were refused: as a whole, and for the one reason that there is."""

from collections.abc import Iterator

from pslab.check.ledger import Ledger
from pslab.check.log_check import LogCheck
from pslab.runs.log import Line
from pswire.decisions import entries as e


class Refusals(LogCheck):
    """The contributions of a refused update, and no others, are dropped as "nonfinite update", at once and in order."""

    name = "refused updates"

    def __init__(self) -> None:
        # Parts of the last refused update that are still to be dropped.
        self._left: list[e.Part] = []
        self._version = 0

    def see(self, entry: Line, ledger: Ledger) -> Iterator[str]:
        match entry.fact:
            case e.Drop(worker, ticket, _, e.NONFINITE):
                if not self._left:
                    yield f"ticket {ticket} of {worker} is dropped as {e.NONFINITE!r}, but no update of it was refused"
                else:
                    expected = self._left.pop(0)
                    if (worker, ticket) != (expected.worker, expected.ticket):
                        yield (
                            f"ticket {ticket} of {worker} is dropped as {e.NONFINITE!r}; next of the refused version "
                            f"{self._version} is ticket {expected.ticket} of {expected.worker}"
                        )
                return
            case e.Refuse(version, _, _, parts):
                yield from self._unsettled(f"version {version} is refused")
                self._left, self._version = list(parts), version
            case _:
                yield from self._unsettled(f"a {entry.kind} entry comes")

    def finish(self, ledger: Ledger) -> Iterator[str]:
        if ledger.stop is not None:
            yield from self._unsettled("the log ends")

    def _unsettled(self, event: str) -> Iterator[str]:
        if self._left:
            tickets = ", ".join(str(part.ticket) for part in self._left)
            self._left = []
            yield f"{event} before tickets {tickets} of the refused version {self._version} are dropped"
