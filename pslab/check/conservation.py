"""The staleness conservation law, as exact integers on a decision log.

Each update makes every other held ticket one version older. Counted at the updates, this ageing must equal the
staleness of the contributions that were applied, dropped or given up, plus the age of what is still held:

    sum over updates of (held tickets not in it)
        = staleness applied + dropped + given up + ages in flight

The left side counts tickets; the right side adds up the staleness that the log itself states. So a wrong staleness
anywhere breaks the law. It holds for any policy, any speeds, any churn.

For n workers that always hold a ticket the left side is (n - 1) T after T updates of one: "mean staleness is n - 1 for
async" is its average.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pslab.runs.fold import LogState
from pslab.runs.log import Line, Malformed
from psserver.decisions import entries as e


@dataclass(frozen=True, slots=True)
class Conservation:
    """Both sides of the law for a whole log."""

    updates: int
    aged: int
    applied: int
    dropped: int
    given_up: int
    in_flight: int

    @property
    def holds(self) -> bool:
        return self.aged == self.accounted

    @property
    def accounted(self) -> int:
        return self.applied + self.dropped + self.given_up + self.in_flight

    def __str__(self) -> str:
        sign = "=" if self.holds else "!="
        return (
            f"{_count(self.updates, 'update')} made work in progress older by {self.aged} versions in total {sign}"
            f" {self.applied} of applied + {self.dropped} of dropped + {self.given_up} of given-up work"
            f" + {self.in_flight} of work still in progress"
        )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@dataclass
class ConservationCounter:
    """A counter of both sides, entry by entry. Call `see` before the state takes the entry."""

    _aged: int = 0
    _applied: int = 0
    _dropped: int = 0
    _given_up: int = 0
    _made: int = 0

    def see(self, entry: Line, state: LogState) -> None:
        match entry.fact:
            case e.Apply() as update:
                self._see_update(update, state)
            case e.Drop(_, _, staleness):
                self._dropped += staleness
            case e.Cancel(_, number) | e.Abandon(_, number):
                if number in state.tickets:
                    self._given_up += state.age(state.tickets[number])

    def _see_update(self, update: e.Apply, state: LogState) -> None:
        used = {part.ticket for part in update.parts}
        self._made += 1
        self._aged += sum(ticket.number not in used for ticket in state.reading())
        self._applied += sum(part.staleness for part in update.parts)

    def result(self, state: LogState) -> Conservation:
        in_flight = sum(state.age(ticket) for ticket in state.reading())
        return Conservation(self._made, self._aged, self._applied, self._dropped, self._given_up, in_flight)


def conservation(log: Iterable[Line | Malformed]) -> Conservation:
    """Return both sides of the law for one log; unreadable lines are skipped."""
    counter, state = ConservationCounter(), LogState()
    for entry in log:
        if isinstance(entry, Line):
            counter.see(entry, state)
            state.see(entry.fact, entry.t)
    return counter.result(state)
