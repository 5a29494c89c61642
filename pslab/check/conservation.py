"""The staleness conservation law, as exact integers on a decision log.

Each update makes every other held ticket one version older. Counted at the updates, this ageing must equal the
staleness of the contributions that were applied, dropped or given up, plus the age of what is still held:

    sum over updates of (held tickets not in it)
        = staleness applied + dropped + given up + ages in flight

The left side counts tickets; the right side adds up the staleness that the log itself states. So a wrong staleness
anywhere breaks the law. It holds for any policy, any speeds, any churn.

Special form: at an update where n workers hold tickets and w of them hold only committed ones, the right side grows by
exactly n - w. So over T such updates, the sum of tau plus the ages in flight is (n - 1) T for async and K-batch runs
(w = 1), (n - K) T for K-async, and 0 for sync. "Mean staleness is n - 1 for async" is its average.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from pslab.runs.fold import Fold
from pslab.runs.log import Line, Malformed
from pswire.decisions import entries as e


@dataclass(frozen=True, slots=True)
class StalenessGroup:
    """All updates at which `workers` workers held tickets, `waiting` of them only committed ones.

    `growth`: of the staleness applied, lost and in flight, as the log states it.
    """

    workers: int
    waiting: int
    updates: int
    growth: int

    @property
    def expected(self) -> int:
        return (self.workers - self.waiting) * self.updates

    @property
    def holds(self) -> bool:
        return self.growth == self.expected

    def __str__(self) -> str:
        sign = "=" if self.holds else "!="
        updates, workers = _count(self.updates, "update"), _count(self.workers, "worker")
        return (
            f"{updates} while {workers} held tickets: staleness grew by "
            f"{self.growth} {sign} ({self.workers} - {self.waiting}) * {self.updates}"
        )


@dataclass(frozen=True, slots=True)
class Conservation:
    """Both sides of the law for a whole log; `groups` has the special form, the most frequent group first."""

    updates: int
    aged: int
    applied: int
    dropped: int
    given_up: int
    in_flight: int
    groups: tuple[StalenessGroup, ...]

    @property
    def holds(self) -> bool:
        return self.aged == self.accounted and all(group.holds for group in self.groups)

    @property
    def accounted(self) -> int:
        return self.applied + self.dropped + self.given_up + self.in_flight

    def __str__(self) -> str:
        sign = "=" if self.aged == self.accounted else "!="
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
    _updates: Counter[tuple[int, int]] = field(default_factory=Counter)
    _growth: Counter[tuple[int, int]] = field(default_factory=Counter)
    _made: int = 0

    def see(self, entry: Line, state: Fold) -> None:
        match entry.fact:
            case e.Apply() as update:
                self._see_update(update, state)
            case e.Drop(_, _, staleness):
                self._dropped += staleness
            case e.Cancel(_, number) | e.Abandon(_, number):
                if number in state.tickets:
                    self._given_up += state.age(state.tickets[number])

    def _see_update(self, update: e.Apply, state: Fold) -> None:
        used = {part.ticket for part in update.parts}
        parts = [ticket for number in used if (ticket := state.held.get(number)) and ticket.base is not None]
        others = [ticket.worker for ticket in state.reading() if ticket.number not in used]
        holding = set(others)
        waiting = {ticket.worker for ticket in parts} - holding
        group = (len(holding | waiting), len(waiting))
        stated = sum(part.staleness for part in update.parts)
        # An update ages each other ticket by one, and turns the parts' ages into the stated staleness.
        # If the version number jumps, the others age by the whole jump.
        step = update.version - state.versions
        self._made += 1
        self._aged += len(others)
        self._applied += stated
        if len(others) != len(holding):
            return  # a worker holds several tickets: the special form does not apply
        self._updates[group] += 1
        self._growth[group] += len(others) * step + stated - sum(state.age(ticket) for ticket in parts)

    def result(self, state: Fold) -> Conservation:
        groups = tuple(
            StalenessGroup(workers, waiting, updates, self._growth[workers, waiting])
            for (workers, waiting), updates in self._updates.most_common()
        )
        in_flight = sum(state.age(ticket) for ticket in state.reading())
        return Conservation(
            self._made, self._aged, self._applied, self._dropped, self._given_up, in_flight, groups
        )


def conservation(log: Iterable[Line | Malformed]) -> Conservation:
    """Return both sides of the law for one log; unreadable lines are skipped."""
    counter, state = ConservationCounter(), Fold()
    for entry in log:
        if isinstance(entry, Line):
            counter.see(entry, state)
            state.see(entry.fact, entry.t)
    return counter.result(state)
