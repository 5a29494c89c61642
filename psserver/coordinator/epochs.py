"""Sums over all workers at the end of an epoch: what metrics, and with them callbacks, are made of.

No decision of the policy depends on them, so they are in no log and no saved state: a worker asks again until it is
answered. A worker that waits here may hold a ticket which others need; therefore nobody is waited for who cannot come.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from psserver.coordinator.members.roster import Member

# Numbers in a report, and rounds that are remembered at once: a few megabytes at most.
MOST_SUMS, MOST_ROUNDS = 2**16, 4


class EpochError(ValueError):
    """A report that does not go with those of other workers; the text says what was expected."""


@dataclass(frozen=True, slots=True)
class Report:
    """One worker's epoch. `number`: of its epochs since it joined, from 0. `layout`: what its sums are of.

    `sums`: added up over workers. `values`: of those who name them, the first worker's count.
    """

    number: int
    layout: str
    sums: Sequence[float]
    values: Mapping[str, float]


@dataclass(slots=True)
class Totals:
    """Of one round. `workers`: whose sums are in it; `complete`: nobody else is waited for."""

    layout: str
    sums: list[float]
    values: dict[str, float] = field(default_factory=dict)
    workers: set[str] = field(default_factory=set)
    complete: bool = False


class EpochSums:
    """One caller at a time. A newcomer takes part from the oldest round that waits when it is first seen."""

    def __init__(self) -> None:
        self._rounds: dict[int, Totals] = {}
        # Of each worker: its incarnation, its first round, and the number that it gave that one.
        self._first: dict[str, tuple[int, int, int | None]] = {}
        self._next = 0

    def add(self, member: Member, report: Report, members: Sequence[Member]) -> Totals:
        """The member's report, once however often it is sent, and the round's totals as they are now.

        `members`: all that are present. Raises EpochError, with no sum changed.
        """
        if len(report.sums) > MOST_SUMS:
            raise EpochError(f"expected at most {MOST_SUMS} sums of an epoch, got {len(report.sums)}")
        self._see(members)
        number = self._round(member, report.number)
        if number not in self._rounds and number < self._next:
            # Long past: nobody remembers the others' sums.
            return Totals(report.layout, list(report.sums), dict(report.values), {member.worker}, True)
        totals = self._rounds.get(number)
        if totals is None:
            totals = self._rounds[number] = Totals(report.layout, [0.0] * len(report.sums))
            self._next = number + 1
            while len(self._rounds) > MOST_ROUNDS:
                del self._rounds[min(self._rounds)]
        self._count(totals, member, report)
        totals.complete = totals.complete or self._nobody_comes(totals, members)
        return totals

    def _see(self, members: Sequence[Member]) -> None:
        waiting = [number for number, totals in self._rounds.items() if not totals.complete]
        first = min(waiting, default=self._next)
        for each in members:
            if self._first.get(each.worker, (None,))[0] != each.incarnation:
                self._first[each.worker] = each.incarnation, first, None
        for gone in self._first.keys() - {each.worker for each in members}:
            del self._first[gone]

    def _round(self, member: Member, number: int) -> int:
        incarnation, first, called = self._first[member.worker]
        called = number if called is None else called
        self._first[member.worker] = incarnation, first, called
        return first + number - called

    def _count(self, totals: Totals, member: Member, report: Report) -> None:
        if totals.layout != report.layout or len(totals.sums) != len(report.sums):
            raise EpochError(
                f"the metrics of {member.worker} are {report.layout!r}, and those of {_named(totals.workers)} "
                f"{totals.layout!r}: compile all workers' models with the same metrics"
            )
        if member.worker not in totals.workers:
            totals.workers.add(member.worker)
            totals.sums[:] = [a + b for a, b in zip(totals.sums, report.sums, strict=True)]
            for name, value in report.values.items():
                if not math.isnan(totals.values.get(name, math.nan)):
                    continue
                totals.values[name] = value

    def _nobody_comes(self, totals: Totals, members: Sequence[Member]) -> bool:
        missing = [each for each in members if each.state != "done" and each.worker not in totals.workers]
        # If all of them wait for tickets, it may be for one that is held here.
        return all(each.requested is not None for each in missing)


def _named(workers: set[str]) -> str:
    return ", ".join(sorted(workers)[:3]) or "others"
