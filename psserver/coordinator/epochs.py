"""Sums over all workers at the end of an epoch: what metrics, and with them callbacks, are made of.

No decision of the policy depends on them, so they are in no log and no saved state: a worker asks again until it is
answered. A worker that waits here may hold a ticket which others need; therefore nobody is waited for who cannot come,
and everybody else for a limited time. What one member says ends no other: sums of different things are added up apart.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from psserver.coordinator.members.roster import Member, Roster
from psserver.coordinator.sentences import named

# Numbers in a report; rounds that are remembered at once, and kinds of metrics in one: some megabytes at most.
MOST_SUMS, MOST_ROUNDS, MOST_LAYOUTS = 2**16, 4, 4
# For a member that goes on working a worker waits so many times as long as its own epoch took.
SLOWER = 5


class EpochError(ValueError):
    """A report that is too large; the text says what was expected."""


@dataclass(frozen=True, slots=True)
class Report:
    """One worker's epoch. `number`: of its epochs since it joined, from 0. `layout`: what its sums are of.

    `sums`: added up over workers. `values`: of those who name them, the first worker's count. `yields`: it can
    contribute nothing under a ticket that it holds.
    """

    number: int
    layout: str
    sums: Sequence[float]
    values: Mapping[str, float]
    yields: bool = False


@dataclass(slots=True)
class Totals:
    """Of those in one round whose sums are of the same things. `workers`: whose sums are in it; `complete`: nobody
    else is waited for; `differing`: workers of the round whose sums are of other things; `held_up`: who asked holds a
    ticket that those who have not ended the epoch wait for."""

    sums: list[float]
    values: dict[str, float] = field(default_factory=dict)
    workers: set[str] = field(default_factory=set)
    complete: bool = False
    differing: frozenset[str] = frozenset()
    held_up: bool = False


@dataclass(slots=True)
class Round:
    """`came`: who has reported, and when, in their order. `begins`: when the former round was complete. `yield_`: who
    of them can contribute nothing."""

    begins: float
    came: dict[str, float] = field(default_factory=dict)
    yield_: set[str] = field(default_factory=set)
    complete: bool = False
    parts: dict[tuple[str, int], Totals] = field(default_factory=dict)


@dataclass(slots=True)
class Place:
    """Where a member is. `round`: of its last report, or its first round. `number`: what it calls that; None before
    its first report. `missed`: it did not come in time, and is not waited for until it reports."""

    incarnation: int
    round: int
    number: int | None = None
    missed: bool = False


class EpochSums:
    """One caller at a time. A newcomer takes part from the oldest round that waits when it is first seen.

    At most one round waits: a member whose own round waits begins no other, so nobody runs ahead. Each waits from its
    own report on, so who reports early makes nobody else late: it is answered by itself; a round is complete without
    a member when at least half have waited in vain. `limit`: seconds that a worker waits for a member which does
    nothing; `began`: when the first epoch did.
    """

    def __init__(self, limit: float, began: float) -> None:
        self._limit, self._ended = limit, began
        self._rounds: dict[int, Round] = {}
        self._places: dict[str, Place] = {}
        self._next = 0
        self._over = False
        #: The worker that validates and writes files for all; empty: worker 0, and nobody had to take over yet.
        self.chief = ""

    def add(
        self, member: Member, report: Report, roster: Roster, now: float, *, over: bool = False
    ) -> Totals:
        """The member's report, once however often it is sent, and the totals of its round as they are now.

        `over`: the job's data has come to its end, and everybody who is here may report. A report out of turn is
        answered with its own sums. Raises EpochError, with no sum changed.
        """
        if len(report.sums) > MOST_SUMS:
            raise EpochError(f"expected at most {MOST_SUMS} sums of an epoch, got {len(report.sums)}")
        self._see(roster.present)
        found = self._round(member, report.number, roster, now)
        key = report.layout, len(report.sums)
        if found is not None and member.worker not in found.came:
            found.came[member.worker] = now
            if report.yields:
                found.yield_.add(member.worker)
            _count(found, key, member, report)
        part = found.parts.get(key) if found is not None else None
        if found is None or part is None or member.worker not in part.workers:
            # Long past, out of turn, or of another kind than all that there is room for.
            return Totals(list(report.sums), dict(report.values), {member.worker}, True)
        self._over = over
        self._look(found, roster, now)
        holders = self._holders(found, roster)
        complete = found.complete or (not holders and self._in_vain(found, member.worker, roster, now))
        differing = frozenset(found.came.keys() - part.workers)
        held_up = not complete and member.worker in holders
        return replace(part, complete=complete, differing=differing, held_up=held_up)

    def awaited(self, roster: Roster, now: float) -> tuple[str, float, float] | None:
        """Whose epoch is waited for, since when, and for how many seconds at most. None: nobody's, or by nobody."""
        number = self._waiting()
        if number is None:
            return None
        waiting = self._rounds[number]
        missing = self._silent(waiting, roster)
        here = [w for w in waiting.came if w in roster.present and not self._in_vain(waiting, w, roster, now)]
        if not missing or not here:
            return None
        since = waiting.came[here[0]]
        end = max(self._end(waiting, worker, each, roster) for worker in here for each in missing)
        return f"the end of the epoch of {named([each.worker for each in missing])}", since, end - since

    def _see(self, present: Mapping[str, Member]) -> None:
        first = self._waiting()
        for name, each in present.items():
            place = self._places.get(name)
            if place is None or place.incarnation != each.incarnation:
                missed = place is not None and place.missed
                self._places[name] = Place(
                    each.incarnation, self._next if first is None else first, None, missed
                )
        for gone in self._places.keys() - present.keys():
            del self._places[gone]

    def _waiting(self) -> int | None:
        return next((number for number, each in self._rounds.items() if not each.complete), None)

    def _round(self, member: Member, number: int, roster: Roster, now: float) -> Round | None:
        """The round that the report belongs to; None if to no other's."""
        place = self._places[member.worker]
        if number == place.number:
            return self._rounds.get(place.round)
        own = self._rounds.get(place.round)
        if place.number is not None and (number < place.number or (own is not None and not own.complete)):
            # It is answered long since, or goes on while others wait for somebody.
            return None
        due = place.round + (place.number is not None)
        found = self._rounds.get(due)
        if found is None or (found.complete and not self._by_many(found, roster)):
            # Too late for it, or few have ended it, who ran ahead: the present one, with those who are there.
            waiting = self._waiting()
            due = self._next if waiting is None else waiting
            found = self._rounds.get(due) or self._begin(roster)
        place.round, place.number, place.missed = due, number, False
        return found

    def _begin(self, roster: Roster) -> Round:
        found = self._rounds[self._next] = Round(self._ended)
        self._next += 1
        while len(self._rounds) > MOST_ROUNDS:
            # Those of few first: who runs ahead does not make others late for what they have in common.
            order = {
                n: (self._by_many(each, roster), n) for n, each in self._rounds.items() if each is not found
            }
            del self._rounds[min(order, key=order.__getitem__)]
        return found

    def _by_many(self, found: Round, roster: Roster) -> bool:
        """At least half of those whom it could have are in it."""
        return 2 * len(found.came) >= len(found.came) + len(self._missing(found, roster))

    def _missing(self, found: Round, roster: Roster) -> list[Member]:
        """Who may come yet. What only joined is waited for by nobody."""
        return [
            each
            for each in roster.by_rank()
            if each.ever_connected
            and (each.state != "done" or self._over)
            and each.worker not in found.came
            and not (each.worker in self._places and self._places[each.worker].missed)
        ]

    def _silent(self, found: Round, roster: Roster) -> list[Member]:
        """Of those who may come yet, who does not wait for a ticket."""
        return [each for each in self._missing(found, roster) if each.requested is None or self._over]

    def _holders(self, found: Round, roster: Roster) -> set[str]:
        """Who has come and holds what all that are missing wait for, as far as it can yield."""
        if found.complete or self._over or self._silent(found, roster) or not self._missing(found, roster):
            return set()
        present = roster.present
        return {name for name in found.yield_ if name in present and present[name].state == "computing"}

    def _end(self, found: Round, worker: str, other: Member, roster: Roster) -> float:
        """Until when the worker waits for the other: while that one works, within reason."""
        came = found.came[worker]
        worked = max(came, roster.tally(other.worker).granted_at or came)
        return min(worked + self._limit, came + max(self._limit, SLOWER * (came - found.begins)))

    def _in_vain(self, found: Round, worker: str, roster: Roster, now: float) -> bool:
        """The worker has waited as long as it does."""
        missing = self._silent(found, roster)
        return all(self._end(found, worker, each, roster) <= now for each in missing)

    def _look(self, found: Round, roster: Roster, now: float) -> None:
        """Is it complete? If all that are missing wait for tickets, it may be for one that is held here."""
        if found.complete:
            return
        missing = self._missing(found, roster)
        silent = self._silent(found, roster)
        vain = sum(self._in_vain(found, worker, roster, now) for worker in found.came) if silent else 0
        if not silent and self._holders(found, roster):
            return
        if not silent or 2 * vain >= len(found.came) + len(missing):
            found.complete, self._ended = True, now
            for each in silent:
                self._places[each.worker].missed = True
            self._appoint(found, roster)

    def _appoint(self, found: Round, roster: Roster) -> None:
        """Who acts for all in the next epoch: the one who did while it is here, else the first of those who came."""
        missed = {worker for worker, place in self._places.items() if place.missed}
        here = [
            each
            for each in roster.by_rank()
            if each.ever_connected and each.state != "done" and each.worker not in missed
        ]
        acts = [each for each in here if each.worker == self.chief or not (self.chief or each.rank)]
        came = [each for each in here if each.worker in found.came]
        self.chief = next((each.worker for each in (*acts, *came)), self.chief)


def _count(found: Round, key: tuple[str, int], member: Member, report: Report) -> None:
    part = found.parts.get(key)
    if part is None:
        if len(found.parts) == MOST_LAYOUTS:
            return
        part = found.parts[key] = Totals([0.0] * len(report.sums))
    part.workers.add(member.worker)
    part.sums[:] = [a + b for a, b in zip(part.sums, report.sums, strict=True)]
    for name, value in report.values.items():
        if math.isnan(part.values.get(name, math.nan)):
            part.values[name] = value
