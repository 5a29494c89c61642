"""The facts that the parts of a policy share: members, open tickets and committed contributions.

Every query that runs once per event takes constant amortised time, so that a policy with 10,000 workers is as fast as
one with ten.
"""

from bisect import insort
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from operator import attrgetter

from psserver.policies.parts.times import Times
from psserver.records import StateError
from pswire.values import value


class Extremes:
    """A multiset of whole numbers that knows its least.

    The numbers are clocks or versions. Greater ones replace them, so the least only rises, one number at a time: over
    a whole run that costs no more than the number of steps counted.
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        # A lower bound of all numbers.
        self._floor = 0

    def add(self, number: int) -> None:
        if not self._counts or number < self._floor:
            self._floor = number
        self._counts[number] = self._counts.get(number, 0) + 1

    def remove(self, number: int) -> None:
        """Remove one occurrence of a number that is present."""
        left = self._counts[number] - 1
        if left:
            self._counts[number] = left
        else:
            del self._counts[number]

    def least(self) -> int | None:
        """Return the least number; None if empty."""
        if not self._counts:
            return None
        while self._floor not in self._counts:
            self._floor += 1
        return self._floor

    def greatest(self) -> int | None:
        """Return the greatest number; None if empty. Scans all distinct numbers, of which there are few."""
        return max(self._counts, default=None)


@dataclass(slots=True)
class Participant:
    """A worker that takes part."""

    worker: str
    rank: int
    # Counts its commits, also those of its former processes; a newcomer starts at the floor of `View`.
    clock: int
    done: bool = False
    # It was granted a ticket since it joined.
    granted: bool = False
    # Its open tickets: at most one, or two under a policy that grants ahead.
    held: list[int] = field(init=False, default_factory=list)


@value
class Open:
    """A granted ticket that is neither committed nor abandoned."""

    ticket: int
    worker: str
    base: int
    # When it was granted, in microseconds of the job; 0 under a policy that needs no times.
    at: int = 0


@dataclass(slots=True)
class Contribution:
    """A committed ticket that waits for its update."""

    ticket: int
    worker: str
    rank: int
    staleness: int
    factor: float
    compensation: float


@dataclass(slots=True)
class View:
    """The facts. Read its fields, and change them through its methods.

    Every dict keeps the order of events, so iteration is deterministic. A field that `__init__` does not take is an
    index over the others, and is not saved.
    """

    version: int = 0
    members: dict[str, Participant] = field(default_factory=dict)
    open: dict[int, Open] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    buffer: list[Contribution] = field(default_factory=list)
    # The number of contributions at the head of the buffer that are folded, in the order of their folds.
    folded: int = 0
    # The greatest number of members that had data at any time.
    peak: int = 0
    # None under a policy that needs no times.
    times: Times | None = None
    # Worker -> the clock at which it left or was done, and comes back.
    left_at: dict[str, int] = field(default_factory=dict)
    # The clock that every active member had reached at some commit: nobody joins below it.
    floor: int = 0
    # Worker -> the updates in a row that were made without it and cancelled its ticket.
    missed: dict[str, int] = field(default_factory=dict)
    # Tickets that deadlines may still cancel; None: no deadline with a budget has decided yet.
    credit: float | None = None
    # The number of members that still have data.
    active_count: int = field(init=False, default=0)
    _clocks: Extremes = field(init=False, default_factory=Extremes)
    _bases: Extremes = field(init=False, default_factory=Extremes)
    _contributors: set[str] = field(init=False)
    # The number of active members that were granted a ticket since they joined.
    _working: int = field(init=False, default=0)
    # The number of contributors that are not active.
    _absent: int = field(init=False)
    # Heap of (rank, worker) of active members without a contribution, with outdated entries among them; None: to be
    # built again.
    _missing: list[tuple[int, str]] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        for member in self.members.values():
            self._activate(member)
        for opened in self.open.values():
            self._bases.add(opened.base)
            if opened.worker in self.members:
                self.members[opened.worker].held.append(opened.ticket)
        self._contributors = {each.worker for each in self.buffer}
        active = {member.worker for member in self.members.values() if not member.done}
        self._absent = len(self._contributors - active)

    def check(self) -> None:
        """Raise StateError if facts that were read contradict each other."""
        names, tickets = self.members.keys(), self.open.values()
        for holds, what in (
            (all(name == member.worker for name, member in self.members.items()), "a member has two names"),
            (names >= {opened.worker for opened in tickets}, "an open ticket is held by no member"),
            (
                all(number == opened.ticket for number, opened in self.open.items()),
                "a ticket has two numbers",
            ),
            (names >= self.waiting.keys(), "a waiting worker is not a member"),
            (
                all(opened.base <= self.version for opened in tickets),
                "a ticket started from a future version",
            ),
            (0 <= self.folded <= len(self.buffer), "more contributions are folded than are in the buffer"),
        ):
            if not holds:
                raise StateError(f"view: {what}")

    # Questions

    @property
    def known_times(self) -> Times:
        """The times, under a policy that needs them."""
        assert self.times is not None, "expected a composition with a deadline, or a trigger that is timed"
        return self.times

    def active(self) -> list[Participant]:
        """Return the members that still have data, by rank. Scans all members, so not for every event."""
        return sorted((m for m in self.members.values() if not m.done), key=attrgetter("rank"))

    def contributors(self) -> set[str]:
        """Return the workers with a contribution in the buffer. Do not change the set."""
        return self._contributors

    def present_count(self) -> int:
        """Count the workers that are active or have contributed."""
        return self.active_count + self._absent

    def slowest_clock(self) -> int:
        """Return the least clock of the active members; 0 if there are none."""
        return self._clocks.least() or 0

    def fastest_clock(self) -> int:
        """Return the greatest clock of the active members; 0 if there are none. Not for every event: it scans."""
        return self._clocks.greatest() or 0

    def oldest_base(self) -> int | None:
        """Return the oldest version that an open ticket started from; None if no ticket is open."""
        return self._bases.least()

    def draining(self) -> bool:
        """Whether no further commit can come."""
        return not self.open and not self.active_count

    def expects_below(self, rank: int) -> bool:
        """Whether an active member of a lower rank has not contributed yet."""
        if self._missing is None:
            lacking = (m for m in self.members.values() if self._is_missing(m.rank, m.worker))
            self._missing = [(m.rank, m.worker) for m in lacking]
            heapify(self._missing)
        while self._missing and not self._is_missing(*self._missing[0]):
            heappop(self._missing)
        return bool(self._missing) and self._missing[0][0] < rank

    def _is_missing(self, rank: int, worker: str) -> bool:
        member = self.members.get(worker)
        if member is None or member.done or member.rank != rank:
            return False
        return worker not in self._contributors

    # Facts

    def join(self, worker: str, rank: int) -> None:
        """Add a worker. One that has left or was done comes back at its own clock, but not below the floor: the others
        have gone on without it. A new one starts at the floor."""
        self.forget(worker)
        member = Participant(worker, rank, clock=max(self.floor, self.left_at.pop(worker, 0)))
        self.members[worker] = member
        self._activate(member)
        self.peak = max(self.peak, self.active_count)
        if worker in self._contributors:
            self._absent -= 1
        elif self._missing is not None:
            heappush(self._missing, (rank, worker))

    def _activate(self, member: Participant) -> None:
        if not member.done:
            self._clocks.add(member.clock)
            self.active_count += 1
            self._working += member.granted

    def finish(self, worker: str) -> None:
        """Mark the worker as done: it has no more data. Once all are done, clocks start anew: a phase is over."""
        member = self.members[worker]
        self.waiting.pop(worker, None)
        if not member.done:
            self._deactivate(member)
            member.done = True
            if not self._working:
                self.restart_clocks()

    def forget(self, worker: str) -> None:
        """Remove a worker that has left, and close its tickets. Its contributions stay."""
        self.waiting.pop(worker, None)
        member = self.members.get(worker)
        if member is None:
            return
        for ticket in tuple(member.held):
            self.close(ticket)
        del self.members[worker]
        if self.times is not None:
            self.times.forget(worker)
        if not member.done:
            self._deactivate(member)

    def _deactivate(self, member: Participant) -> None:
        self.left_at[member.worker] = member.clock
        self._clocks.remove(member.clock)
        self.active_count -= 1
        self._working -= member.granted
        if member.worker in self._contributors:
            self._absent += 1

    def restart_clocks(self) -> None:
        """Have the clocks of all workers, present or not, start anew from the same number."""
        self.left_at, self.floor, self._clocks = {}, 0, Extremes()
        for member in self.members.values():
            member.clock = 0
            if not member.done:
                self._clocks.add(0)

    def grant(self, worker: str) -> int:
        """Open the waiting worker's ticket from the current version. Returns its number."""
        ticket = self.waiting.pop(worker)
        self.open[ticket] = Open(ticket, worker, self.version, self._granted_now())
        member = self.members[worker]
        member.held.append(ticket)
        if not member.granted:
            member.granted = True
            self._working += 1
        self._bases.add(self.version)
        return ticket

    def _granted_now(self) -> int:
        if self.times is None:
            return 0
        return self.times.granted()

    def close(self, ticket: int) -> Open | None:
        """Close a ticket. Returns it, or None if it was not open."""
        found = self.open.pop(ticket, None)
        if found is not None:
            self.members[found.worker].held.remove(ticket)
            self._bases.remove(found.base)
        return found

    def advance(self, member: Participant) -> None:
        """Advance the clock of a member that has completed a unit of work."""
        if not member.done:
            self._clocks.add(member.clock + 1)
            self._clocks.remove(member.clock)
        member.clock += 1
        self.floor = max(self.floor, self.slowest_clock())

    def contribute(self, contribution: Contribution, *, by_rank: bool) -> None:
        """Append it to the buffer, or insert it by rank after the folded ones, whose places are fixed."""
        if by_rank:
            insort(self.buffer, contribution, lo=self.folded, key=attrgetter("rank"))
        else:
            self.buffer.append(contribution)
        worker = contribution.worker
        if worker not in self._contributors:
            self._contributors.add(worker)
            member = self.members.get(worker)
            self._absent += member is None or member.done

    def next_version(self) -> None:
        """Turn the buffer into the next version."""
        self.version += 1
        for worker in self._contributors & self.missed.keys() if self.missed else ():
            del self.missed[worker]
        self.discard()

    def discard(self) -> None:
        """Empty the buffer."""
        self.buffer, self.folded = [], 0
        self._contributors, self._absent, self._missing = set(), 0, None
