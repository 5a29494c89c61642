"""How workers spent their time: the fold over a log, which also says what work each entry ends.

A worker reports times with its commits (see `Times` in the protocol). They lie, in this order, between the end of its
ticket before and the commit: steps before it asked, waiting for the grant, receiving the version, computing. The rest
is sending: the push, and the messages of grant and commit. Where an update is summed in a fixed order, a push may
have to wait for its turn first (see `RoomTimes`). A ticket that was granted ahead has no wait for the grant, and its
receiving is what the training loop still had to wait for.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from pslab.runs.fold import OPEN, LogState
from psserver.decisions import entries as facts
from psserver.decisions.counting import moments

COMPUTING, RECEIVING, SENDING, WAITING = "computing", "receiving", "sending", "waiting for a grant"
# The gradient is ready, and others are summed before it.
TURN = "waiting for its turn"
# Under a ticket that was cancelled or abandoned. After a cancel it lasts until the next grant, because the worker may
# not have stopped at once.
WASTED = "wasted"
# From grant to commit, of a worker that reports no times.
UNREPORTED = "at work"
KINDS = (COMPUTING, RECEIVING, SENDING, WAITING, TURN, WASTED, UNREPORTED)

# Payloads that a server stages before their turn.
STAGING_LIMIT = 4
# Seconds by which sums of a log's numbers may be off.
ROUNDING = 1e-5


@dataclass(frozen=True, slots=True)
class Stretch:
    """A span of a worker's time, in seconds of the log. `kind`: one of KINDS."""

    kind: str
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class TicketTime:
    """The time of one ticket, in seconds of the log.

    `before`: from the end of the worker's ticket before; steps without a ticket, and the wait for this grant.
    `held`: from there to the commit, or to the end of a ticket without one. Stretches follow each other without
    gaps; some may be empty.
    """

    worker: str
    ticket: int
    base: int
    before: tuple[Stretch, ...]
    held: tuple[Stretch, ...]
    commit: facts.Commit | None

    @property
    def rest(self) -> bool:
        """True for the time between a cancel and the worker's next grant: the ticket itself had ended before."""
        return not self.before

    @property
    def begin(self) -> float:
        return self.held[0].begin

    @property
    def end(self) -> float:
        return self.held[-1].end


class WorkFold(LogState):
    """A fold that also returns the work that each entry ends: call `work` instead of `see`."""

    def __init__(self) -> None:
        super().__init__()
        # Worker -> when its last ticket ended, or it joined. Workers that are away or done are not in it.
        self._free: dict[str, float] = {}
        # Worker -> number and base of the cancelled ticket that it may still work on.
        self._wasted: dict[str, tuple[int, int]] = {}
        self._turns = RoomTimes()

    def work(self, fact: facts.Entry, t: float) -> Sequence[TicketTime]:
        """Take one entry, made at `t` seconds, as true. Return the work that it ends."""
        ended = self._ended(fact, t)
        self._turns.see(fact, t)
        self.see(fact, t)
        return ended

    def _ended(self, fact: facts.Entry, t: float) -> Sequence[TicketTime]:
        match fact:
            case facts.Join(worker) | facts.Resume(worker):
                self._free[worker] = t
            case facts.Grant(worker):
                return self._after_cancel(worker, t)
            case facts.Commit():
                return [self._committed(fact, t)]
            case facts.Cancel(worker, ticket) | facts.Abandon(worker, ticket):
                return self._given_up(worker, ticket, t, cancelled=isinstance(fact, facts.Cancel))
            case facts.Leave(worker) | facts.Done(worker):
                # What it did since its last ticket is not known.
                self._free.pop(worker, None)
                self._wasted.pop(worker, None)
        return ()

    def _after_cancel(self, worker: str, t: float) -> Sequence[TicketTime]:
        cancelled = self._wasted.pop(worker, None)
        if cancelled is None:
            return ()
        begin, self._free[worker] = self._free.get(worker, t), t
        ticket, base = cancelled
        return [TicketTime(worker, ticket, base, (), (Stretch(WASTED, begin, t),), None)]

    def _committed(self, commit: facts.Commit, t: float) -> TicketTime:
        worker, ticket = commit.worker, self.held.get(commit.ticket)
        base, granted = 0, t
        if ticket is not None and ticket.state == OPEN:
            base, granted = ticket.base or 0, ticket.granted
        since = self._free.get(worker, granted)
        self._free[worker] = t
        stretches = stretches_of(since, granted, t, commit, self._turns)
        first = 1 + [stretch.kind for stretch in stretches].index(WAITING)
        return TicketTime(
            worker, commit.ticket, base, tuple(stretches[:first]), tuple(stretches[first:]), commit
        )

    def _given_up(self, worker: str, number: int, t: float, *, cancelled: bool) -> Sequence[TicketTime]:
        oldest = next((ticket for ticket in self.open_of(worker) if ticket.base is not None), None)
        # Nothing was done under the initial values' ticket, nor under one that was granted ahead.
        if oldest is None or oldest.number != number:
            return ()
        base, granted = oldest.base or 0, oldest.granted
        since = self._free.get(worker, granted)
        self._free[worker] = t
        if cancelled:
            self._wasted[worker] = number, base
        wait = Stretch(WAITING, since, max(since, granted))
        return [TicketTime(worker, number, base, (wait,), (Stretch(WASTED, wait.end, t),), None)]


class RoomTimes:
    """When the servers had room for a payload, for tickets that are summed in a fixed order. Takes every entry.

    A server stages few payloads before their turn. One that finds no room is admitted when it is next in turn, or when
    a staged one is summed. The log shows when that was, provided that servers have the default limit and that payloads
    travel fast.
    """

    def __init__(self) -> None:
        # Tickets that are not summed yet: as a heap of (turn, ticket), and with the time of their commits or None.
        self._order: list[tuple[int, int]] = []
        self._open: dict[int, float | None] = {}
        # The next ticket, since when it is the next, and when one was last summed that had been staged before.
        self._next, self._since, self._freed = -1, 0.0, 0.0
        # The number of staged payloads (`_counts`) from each of `_times` on.
        self._times: list[float] = []
        self._counts: list[int] = []

    def see(self, fact: facts.Entry, t: float) -> None:
        """Take one entry, made at `t` seconds, as true."""
        match fact:
            case facts.Grant(_, ticket, _, turn) if turn is not None:
                self._open[ticket] = None
                heappush(self._order, (turn, ticket))
            case facts.Commit(_, ticket) if ticket in self._open:
                self._open[ticket] = t
                self._count(1, t)
            case facts.Fold(ticket) | facts.Drop(_, ticket) if ticket in self._open:
                self._summed(ticket, t)
            case facts.Apply():
                # The last contribution of an update has no fold entry.
                for part in fact.parts:
                    if part.ticket in self._open:
                        self._summed(part.ticket, t)
            case facts.Cancel(_, ticket) | facts.Abandon(_, ticket) if ticket in self._open:
                del self._open[ticket]
            case _:
                return
        while self._order and self._order[0][1] not in self._open:
            heappop(self._order)
        following = self._order[0][1] if self._order else -1
        if following != self._next:
            self._next, self._since = following, t

    def _summed(self, ticket: int, t: float) -> None:
        committed = self._open.pop(ticket)
        if committed is not None:
            self._count(-1, t)
            self._freed = t if committed < t else self._freed

    def _count(self, change: int, t: float) -> None:
        if not self._open:
            # The round is over.
            self._times, self._counts = [], []
            return
        self._counts.append((self._counts[-1] if self._counts else 0) + change)
        self._times.append(t)

    def admitted_at(self, ticket: int, ready: float, now: float) -> float:
        """Return when the servers admitted a payload that was `ready` at that time and is committed `now`.

        Call it before `see` takes the commit.
        """
        place = bisect_right(self._times, ready)
        if ticket not in self._open or not place or self._counts[place - 1] < STAGING_LIMIT:
            return ready
        room = max(self._freed, self._since) if ticket == self._next else self._freed
        return min(room, now) if room > ready + ROUNDING else ready


def stretches_of(
    since: float, granted: float, now: float, commit: facts.Commit, turns: RoomTimes
) -> list[Stretch]:
    """Return the stretches between `since`, the end of the worker's ticket before, and the commit at `now`.

    `turns` has taken every entry before the commit.
    """
    if commit.pull is None:
        return [Stretch(WAITING, since, granted), Stretch(UNREPORTED, max(since, granted), now)]
    asked, begun, pulled, computed = moments(since, granted, now, commit)
    admitted = turns.admitted_at(commit.ticket, computed, now)
    return [
        Stretch(COMPUTING, since, asked),
        Stretch(WAITING, asked, granted),
        Stretch(RECEIVING, begun, pulled),
        Stretch(COMPUTING, pulled, computed),
        Stretch(TURN, computed, admitted),
        Stretch(SENDING, admitted, now),
    ]
