"""What the parts of a policy look at: who is here, what is open, what is committed.

Every question that is asked once per event is answered in constant time
(amortised), so that a policy with 10,000 workers is as quick as one with ten.
"""

from bisect import insort
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from operator import attrgetter

from psserver.policies.parts.extremes import Extremes
from pswire.values import value


@dataclass(slots=True)
class Member:
    """A worker that takes part, as policies see it."""

    worker: str
    rank: int
    # Commits of this worker, or the slowest clock at its join: a newcomer
    # must not look slower than everybody else.
    clock: int
    done: bool = False
    # Its open tickets: at most one, or two where the policy grants ahead.
    held: list[int] = field(default_factory=list)


@value
class Open:
    """A granted ticket that is neither committed nor given up."""

    ticket: int
    worker: str
    base: int


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
    """Facts only; read its fields, change them through its methods.

    Every dict keeps the order of its events, so iteration is deterministic.
    """

    version: int = 0
    members: dict[str, Member] = field(default_factory=dict)
    open: dict[int, Open] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    buffer: list[Contribution] = field(default_factory=list)
    # So many contributions at the head of the buffer are folded, in the order of their folds.
    folded: int = 0
    # Members that still have data, and the most there ever were at once.
    active_count: int = 0
    peak: int = 0
    _clocks: Extremes = field(default_factory=Extremes)
    _bases: Extremes = field(default_factory=Extremes)
    _contributors: set[str] = field(default_factory=set)
    # Contributors that are not active.
    _absent: int = 0
    # (rank, worker) of active members without a contribution, lowest first, and possibly
    # outdated ones; None: to be made anew.
    _missing: list[tuple[int, str]] | None = None

    # Questions

    def active(self) -> list[Member]:
        """Members that still have data, by rank. Looks at everybody: for sentences, not for every event."""
        return sorted((m for m in self.members.values() if not m.done), key=attrgetter("rank"))

    def contributors(self) -> set[str]:
        """Workers with a contribution in the buffer. Not to be changed."""
        return self._contributors

    def present_count(self) -> int:
        """Workers that are active or have contributed."""
        return self.active_count + self._absent

    def slowest_clock(self) -> int:
        """Of the active members; 0 when there are none."""
        return self._clocks.least() or 0

    def fastest_clock(self) -> int:
        """Of the active members; 0 when there are none. Not for every event: see `Extremes.greatest`."""
        return self._clocks.greatest() or 0

    def oldest_base(self) -> int | None:
        """Of the open tickets; None when there are none."""
        return self._bases.least()

    def draining(self) -> bool:
        """Nothing more will ever be committed."""
        return not self.open and not self.active_count

    def expects_below(self, rank: int) -> bool:
        """An active member of a lower rank has not contributed yet."""
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
        """A worker joins, with the clock of the slowest."""
        self.forget(worker)
        self.take_up(Member(worker, rank, clock=self.slowest_clock()))
        self.peak = max(self.peak, self.active_count)
        if worker in self._contributors:
            self._absent -= 1
        elif self._missing is not None:
            heappush(self._missing, (rank, worker))

    def take_up(self, member: Member) -> None:
        """It is a member, with that clock."""
        self.members[member.worker] = member
        if not member.done:
            self._clocks.add(member.clock)
            self.active_count += 1

    def finish(self, worker: str) -> None:
        """The worker has no more data."""
        member = self.members[worker]
        self.waiting.pop(worker, None)
        if not member.done:
            self._deactivate(member)
            member.done = True

    def forget(self, worker: str) -> None:
        """The worker has gone, and what it holds is void. Its contributions stay."""
        self.waiting.pop(worker, None)
        member = self.members.get(worker)
        if member is None:
            return
        for ticket in tuple(member.held):
            self.close(ticket)
        del self.members[worker]
        if not member.done:
            self._deactivate(member)

    def _deactivate(self, member: Member) -> None:
        self._clocks.remove(member.clock)
        self.active_count -= 1
        if member.worker in self._contributors:
            self._absent += 1

    def grant(self, worker: str) -> int:
        """The waiting worker starts from the current version. Returns its ticket."""
        ticket = self.waiting.pop(worker)
        self.open[ticket] = Open(ticket, worker, self.version)
        self.members[worker].held.append(ticket)
        self._bases.add(self.version)
        return ticket

    def take_back(self, ticket: int) -> None:
        """The ticket was not granted after all: its worker waits for it."""
        found = self.close(ticket)
        if found is not None:
            self.waiting[found.worker] = ticket

    def reopen(self, opened: Open) -> None:
        """The ticket was not closed after all."""
        self.open[opened.ticket] = opened
        self.members[opened.worker].held.append(opened.ticket)
        self._bases.add(opened.base)

    def close(self, ticket: int) -> Open | None:
        """The ticket is no longer open. None when it was not."""
        found = self.open.pop(ticket, None)
        if found is not None:
            self.members[found.worker].held.remove(ticket)
            self._bases.remove(found.base)
        return found

    def advance(self, member: Member) -> None:
        """The member has completed one more unit of work."""
        if not member.done:
            self._clocks.add(member.clock + 1)
            self._clocks.remove(member.clock)
        member.clock += 1

    def contribute(self, contribution: Contribution, *, by_rank: bool) -> None:
        """Put it at the end of the buffer, or by rank behind what is folded: those places are fixed."""
        if by_rank:
            insort(self.buffer, contribution, lo=self.folded, key=attrgetter("rank"))
        else:
            self.buffer.append(contribution)
        worker = contribution.worker
        if worker not in self._contributors:
            self._contributors.add(worker)
            member = self.members.get(worker)
            self._absent += member is None or member.done

    def renew(self) -> None:
        """The buffer has become the next version."""
        self.version += 1
        self.discard()

    def discard(self) -> None:
        """The buffer is empty again."""
        self.buffer, self.folded = [], 0
        self._contributors, self._absent, self._missing = set(), 0, None
