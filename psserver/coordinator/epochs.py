"""Sums of metrics over all workers at the end of an epoch.

No decision of the policy depends on them, so they are in no log and no saved state: a worker asks again until it gets
an answer. A worker that waits here may hold a ticket that others need, so a round waits only for members that can
report, and for a limited time. A member cannot harm others: sums with different layouts are kept apart.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from psserver.coordinator.roster import Member, Roster, named

# Limits, which keep memory at some megabytes: numbers in a report, rounds at once, layouts in a round.
MAX_SUMS, MAX_ROUNDS, MAX_LAYOUTS = 2**16, 4, 4
# A worker waits for a member that is still working up to this multiple of its own epoch's duration.
PATIENCE_FACTOR = 5


class EpochError(ValueError):
    """A report that is too large."""


@dataclass(frozen=True, slots=True)
class EpochReport:
    """One worker's epoch. `number`: counts its epochs since it joined, from 0. `layout`: names what the sums are of.

    `sums`: added up over workers. `values`: the first worker's value counts. `yields`: the worker cannot contribute
    under a ticket that it holds.
    """

    number: int
    layout: str
    sums: Sequence[float]
    values: Mapping[str, float]
    yields: bool = False


@dataclass(slots=True)
class Totals:
    """The totals of one layout in a round.

    `workers`: those whose sums are included. `complete`: the round waits for no one else. `differing`: workers of the
    round with another layout. `held_up`: the asking worker holds a ticket that the missing workers wait for.
    """

    sums: list[float]
    values: dict[str, float] = field(default_factory=dict)
    workers: set[str] = field(default_factory=set)
    complete: bool = False
    differing: frozenset[str] = frozenset()
    held_up: bool = False


@dataclass(slots=True)
class Round:
    """One epoch of all workers.

    `begins`: when the former round was complete. `reported`: worker -> time of its report, in order. `yielding`: those
    of them that cannot contribute under the ticket that they hold.
    """

    begins: float
    reported: dict[str, float] = field(default_factory=dict)
    yielding: set[str] = field(default_factory=set)
    complete: bool = False
    parts: dict[tuple[str, int], Totals] = field(default_factory=dict)


@dataclass(slots=True)
class EpochPlace:
    """A member's position. `round`: that of its last report, or its first. `number`: the member's own count of it;
    None before its first report. `missed`: it was late, so no round waits for it until it reports."""

    incarnation: int
    round: int
    number: int | None = None
    missed: bool = False


class EpochSums:
    """The rounds of a job. One caller at a time.

    At most one round waits: a member whose own round waits cannot begin another, so no member runs ahead. A newcomer
    takes part from the oldest round that waits. Each worker's wait counts from its own report, and a worker that has
    waited long enough is answered by itself. A round is complete without a member when at least half have waited long
    enough for it. `limit`: seconds that a worker waits for an idle member. `began`: start of the first epoch.
    """

    def __init__(self, limit: float, began: float) -> None:
        self._limit, self._ended = limit, began
        self._rounds: dict[int, Round] = {}
        self._places: dict[str, EpochPlace] = {}
        self._next = 0
        self._over = False
        #: The worker that validates and writes files for all; empty: worker 0, as long as no other had to replace it.
        self.chief = ""

    def add(
        self, member: Member, report: EpochReport, roster: Roster, now: float, *, over: bool = False
    ) -> Totals:
        """Count the member's report once, however often it is sent, and return its round's present totals.

        `over`: the job's data has ended, so all present members may report. A report out of turn is answered with its
        own sums. Raises EpochError, with no sum changed.
        """
        if len(report.sums) > MAX_SUMS:
            raise EpochError(f"expected at most {MAX_SUMS} sums of an epoch, got {len(report.sums)}")
        self._track(roster.present)
        found = self._round(member, report.number, roster, now)
        key = report.layout, len(report.sums)
        if found is not None and member.worker not in found.reported:
            found.reported[member.worker] = now
            if report.yields:
                found.yielding.add(member.worker)
            _count(found, key, member, report)
        part = found.parts.get(key) if found is not None else None
        if found is None or part is None or member.worker not in part.workers:
            # An old report, one out of turn, or one layout too many.
            return Totals(list(report.sums), dict(report.values), {member.worker}, True)
        self._over = over
        self._complete_if_due(found, roster, now)
        holders = self._holders(found, roster)
        complete = found.complete or (not holders and self._waited_enough(found, member.worker, roster, now))
        differing = frozenset(found.reported.keys() - part.workers)
        held_up = not complete and member.worker in holders
        return replace(part, complete=complete, differing=differing, held_up=held_up)

    def awaited(self, roster: Roster, now: float) -> tuple[str, float, float] | None:
        """Return whose epoch is awaited, since when, and for how many seconds at most; None if no one's is."""
        number = self._waiting()
        if number is None:
            return None
        waiting = self._rounds[number]
        missing = self._silent(waiting, roster)
        here = [
            w
            for w in waiting.reported
            if w in roster.present and not self._waited_enough(waiting, w, roster, now)
        ]
        if not missing or not here:
            return None
        since = waiting.reported[here[0]]
        end = max(self._end(waiting, worker, each, roster) for worker in here for each in missing)
        return f"the end of the epoch of {named([each.worker for each in missing])}", since, end - since

    def _track(self, present: Mapping[str, Member]) -> None:
        first = self._waiting()
        for name, each in present.items():
            place = self._places.get(name)
            if place is None or place.incarnation != each.incarnation:
                missed = place is not None and place.missed
                self._places[name] = EpochPlace(
                    each.incarnation, self._next if first is None else first, None, missed
                )
        for gone in self._places.keys() - present.keys():
            del self._places[gone]

    def _waiting(self) -> int | None:
        return next((number for number, each in self._rounds.items() if not each.complete), None)

    def _round(self, member: Member, number: int, roster: Roster, now: float) -> Round | None:
        """Return the round that the report belongs to; None if it stands alone."""
        place = self._places[member.worker]
        if number == place.number:
            return self._rounds.get(place.round)
        own = self._rounds.get(place.round)
        if place.number is not None and (number < place.number or (own is not None and not own.complete)):
            # It was answered long ago, or its sender runs ahead of a round that waits.
            return None
        due = place.round + (place.number is not None)
        found = self._rounds.get(due)
        if found is None or (found.complete and not self._reported_by_half(found, roster)):
            # Too late for it, or only a few reported, which ran ahead: use the present round.
            waiting = self._waiting()
            due = self._next if waiting is None else waiting
            found = self._rounds.get(due) or self._begin(roster)
        place.round, place.number, place.missed = due, number, False
        return found

    def _begin(self, roster: Roster) -> Round:
        found = self._rounds[self._next] = Round(self._ended)
        self._next += 1
        while len(self._rounds) > MAX_ROUNDS:
            # Discard rounds with few reports first, so that a member that runs ahead evicts no common round.
            order = {
                n: (self._reported_by_half(each, roster), n)
                for n, each in self._rounds.items()
                if each is not found
            }
            del self._rounds[min(order, key=order.__getitem__)]
        return found

    def _reported_by_half(self, found: Round, roster: Roster) -> bool:
        """Whether at least half of the possible members have reported."""
        return 2 * len(found.reported) >= len(found.reported) + len(self._missing(found, roster))

    def _missing(self, found: Round, roster: Roster) -> list[Member]:
        """Return the members that may still report. A member without a session does not count."""
        return [
            each
            for each in roster.by_rank()
            if each.ever_connected
            and (each.state != "done" or self._over)
            and each.worker not in found.reported
            and not (each.worker in self._places and self._places[each.worker].missed)
        ]

    def _silent(self, found: Round, roster: Roster) -> list[Member]:
        """Return those of the missing that do not wait for a ticket."""
        return [each for each in self._missing(found, roster) if each.requested is None or self._over]

    def _holders(self, found: Round, roster: Roster) -> set[str]:
        """Return the reporters that hold a ticket which all missing members wait for, and that yield it."""
        if found.complete or self._over or self._silent(found, roster) or not self._missing(found, roster):
            return set()
        present = roster.present
        return {name for name in found.yielding if name in present and present[name].state == "computing"}

    def _end(self, found: Round, worker: str, other: Member, roster: Roster) -> float:
        """Return the time until which the worker waits for the other: longer while that one is working."""
        came = found.reported[worker]
        worked = max(came, roster.tally(other.worker).granted_at or came)
        return min(worked + self._limit, came + max(self._limit, PATIENCE_FACTOR * (came - found.begins)))

    def _waited_enough(self, found: Round, worker: str, roster: Roster, now: float) -> bool:
        """Whether the worker has waited long enough for all silent members."""
        missing = self._silent(found, roster)
        return all(self._end(found, worker, each, roster) <= now for each in missing)

    def _complete_if_due(self, found: Round, roster: Roster, now: float) -> None:
        """Complete the round if no member must be awaited any more.

        If all missing members wait for tickets, a reporter may hold the one that they need: the round then stays open.
        """
        if found.complete:
            return
        missing = self._missing(found, roster)
        silent = self._silent(found, roster)
        waited = (
            sum(self._waited_enough(found, worker, roster, now) for worker in found.reported) if silent else 0
        )
        if not silent and self._holders(found, roster):
            return
        if not silent or 2 * waited >= len(found.reported) + len(missing):
            found.complete, self._ended = True, now
            for each in silent:
                self._places[each.worker].missed = True
            self._appoint(found, roster)

    def _appoint(self, found: Round, roster: Roster) -> None:
        """Choose the chief of the next epoch: the present one while it is here, else the first reporter by rank."""
        missed = {worker for worker, place in self._places.items() if place.missed}
        here = [
            each
            for each in roster.by_rank()
            if each.ever_connected and each.state != "done" and each.worker not in missed
        ]
        acts = [each for each in here if each.worker == self.chief or not (self.chief or each.rank)]
        came = [each for each in here if each.worker in found.reported]
        self.chief = next((each.worker for each in (*acts, *came)), self.chief)


def _count(found: Round, key: tuple[str, int], member: Member, report: EpochReport) -> None:
    part = found.parts.get(key)
    if part is None:
        if len(found.parts) == MAX_LAYOUTS:
            return
        part = found.parts[key] = Totals([0.0] * len(report.sums))
    part.workers.add(member.worker)
    part.sums[:] = [a + b for a, b in zip(part.sums, report.sums, strict=True)]
    for name, value in report.values.items():
        if math.isnan(part.values.get(name, math.nan)):
            part.values[name] = value
