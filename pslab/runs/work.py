"""A decision log as pieces of work: what each worker did under each ticket, and when.

What a worker reported with its commits (see `Times` in the protocol) lies in order
between the end of its ticket before and the commit: steps before it asked,
waiting for the grant, the version on its way in, computing; what is left is
the way out: the push, and the ways of grant and commit. Where an update is
summed in a fixed order, a push may have to wait for its turn first (see
`Turns`). With a ticket that was granted ahead there is no waiting for the
grant, and coming in is what the training loop still had to wait for.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from pslab.runs.fold import Fold, Ticket
from pswire.decisions import entries as facts
from pswire.decisions.counting import moments

COMPUTING, RECEIVING, SENDING, WAITING = "computing", "receiving", "sending", "waiting for a grant"
# With a gradient that is ready, for those that are summed before it.
TURN = "waiting for its turn"
# Under a ticket that was cancelled or given up; after a cancel up to the next grant, for the worker may not
# have stopped at once.
WASTED = "wasted"
# From grant to commit, of a worker that does not report what it did.
UNREPORTED = "at work"
KINDS = (COMPUTING, RECEIVING, SENDING, WAITING, TURN, WASTED, UNREPORTED)

# Payloads that a server holds before their turn, by its usual `--staging-limit`.
STAGED = 4
# Seconds by which sums of a log's numbers may be off.
ROUNDING = 1e-5


@dataclass(frozen=True, slots=True)
class Stretch:
    """In seconds from the first grant. `kind`: one of KINDS."""

    kind: str
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Work:
    """One ticket's time, in seconds of the log.

    `before`: from the end of its worker's ticket before; steps without a ticket, and the wait for
    this grant. `held`: from then on to the commit, or to the end of a ticket that came to none.
    Stretches follow each other without gaps; some may be empty.
    """

    worker: str
    ticket: int
    base: int
    before: tuple[Stretch, ...]
    held: tuple[Stretch, ...]
    commit: facts.Commit | None

    @property
    def rest(self) -> bool:
        """Whether it is what followed a cancel, up to the worker's next grant: the ticket had ended before."""
        return not self.before

    @property
    def begin(self) -> float:
        return self.held[0].begin

    @property
    def end(self) -> float:
        return self.held[-1].end


class WorkFold(Fold):
    """A fold over a log that also says what work each entry ends: give it the facts by `work`, in order."""

    def __init__(self) -> None:
        super().__init__()
        # When a worker's last ticket ended, or it joined; absent while it is away, or done.
        self._free: dict[str, float] = {}
        # Worker -> its open tickets in the order of their grants.
        self._open_of: dict[str, list[Ticket]] = {}
        # Worker -> the cancelled ticket that it may still work on, until its next grant.
        self._wasted: dict[str, tuple[int, int]] = {}
        self._turns = Turns()

    def work(self, fact: facts.Entry, t: float) -> Sequence[Work]:
        """Take one entry as true, as `see`. Return the work that it ends."""
        found = self._ended(fact, t)
        self._turns.see(fact, t)
        self.see(fact, t)
        if isinstance(fact, facts.Grant):
            self._open_of.setdefault(fact.worker, []).append(self.held[fact.ticket])
        return found

    def _ended(self, fact: facts.Entry, t: float) -> Sequence[Work]:
        match fact:
            case facts.Join(worker):
                self._free[worker], self._open_of[worker] = t, []
            case facts.Resume(worker):
                self._free[worker] = t
            case facts.Grant(worker):
                return self._after_cancel(worker, t)
            case facts.Commit():
                return [self._committed(fact, t)]
            case facts.Cancel(worker, ticket) | facts.Abandon(worker, ticket):
                return self._given_up(worker, ticket, t, cancelled=isinstance(fact, facts.Cancel))
            case facts.Leave(worker) | facts.Done(worker):
                # What it did without a ticket since its last one is not known.
                self._free.pop(worker, None)
                self._wasted.pop(worker, None)
        return ()

    def _after_cancel(self, worker: str, t: float) -> Sequence[Work]:
        cancelled = self._wasted.pop(worker, None)
        if cancelled is None:
            return ()
        begin, self._free[worker] = self._free.get(worker, t), t
        ticket, base = cancelled
        return [Work(worker, ticket, base, (), (Stretch(WASTED, begin, t),), None)]

    def _committed(self, commit: facts.Commit, t: float) -> Work:
        worker, ticket = commit.worker, commit.ticket
        opened = self._ends(worker, ticket)
        base, granted = (0, t) if opened is None else (opened.base or 0, opened.granted)
        since = self._free.get(worker, granted)
        self._free[worker] = t
        stretches = stretches_of(since, granted, t, commit, self._turns)
        first = 1 + [stretch.kind for stretch in stretches].index(WAITING)
        return Work(worker, ticket, base, tuple(stretches[:first]), tuple(stretches[first:]), commit)

    def _given_up(self, worker: str, ticket: int, t: float, *, cancelled: bool) -> Sequence[Work]:
        oldest = next(iter(self._open_of.get(worker, ())), None)
        found = self._ends(worker, ticket)
        # The initial values' ticket is no grant; one that came ahead was not begun.
        if found is None or found is not oldest:
            return ()
        base, granted = found.base or 0, found.granted
        since = self._free.get(worker, granted)
        self._free[worker] = t
        if cancelled:
            self._wasted[worker] = ticket, base
        wait = Stretch(WAITING, since, max(since, granted))
        return [Work(worker, ticket, base, (wait,), (Stretch(WASTED, wait.end, t),), None)]

    def _ends(self, worker: str, number: int) -> Ticket | None:
        """An open ticket of a grant is open no more."""
        held = self._open_of.get(worker, [])
        found = next((ticket for ticket in held if ticket.number == number), None)
        if found is not None:
            held.remove(found)
        return found


class Turns:
    """When there was room for a payload, of tickets that are summed in a fixed order. Give it every fact of a log.

    A server takes few payloads before their turn. One that finds no room comes in when it is the next, or when one
    of those few is summed. The log shows when that was, of servers with the usual room and of payloads that take no
    long time to come in.
    """

    def __init__(self) -> None:
        # Tickets that are not summed yet: by turn, the next first; when each was committed, None before it is.
        self._order: list[tuple[int, int]] = []
        self._open: dict[int, float | None] = {}
        self._held: dict[str, set[int]] = {}
        # The next, since when it is the next, and when one was summed that had come before its turn.
        self._next, self._since, self._freed = -1, 0.0, 0.0
        # How many payloads were there, from when on.
        self._times: list[float] = []
        self._counts: list[int] = []

    def see(self, fact: facts.Entry, t: float) -> None:
        match fact:
            case facts.Grant(worker, ticket, _, turn) if turn is not None:
                self._open[ticket] = None
                self._held.setdefault(worker, set()).add(ticket)
                heappush(self._order, (turn, ticket))
            case facts.Commit(worker, ticket) if ticket in self._open:
                self._open[ticket] = t
                self._held[worker].discard(ticket)
                self._count(1, t)
            case facts.Fold(ticket) | facts.Drop(_, ticket) if ticket in self._open:
                self._summed(ticket, t)
            case facts.Apply():
                # The last of an update is in no fold.
                for part in fact.parts:
                    if part.ticket in self._open:
                        self._summed(part.ticket, t)
            case facts.Cancel(worker, ticket) | facts.Abandon(worker, ticket) if ticket in self._open:
                self._held[worker].discard(ticket)
                del self._open[ticket]
            case facts.Leave(worker):
                for ticket in self._held.pop(worker, ()):
                    self._open.pop(ticket, None)
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
            # Of a round that is over.
            self._times, self._counts = [], []
            return
        self._counts.append((self._counts[-1] if self._counts else 0) + change)
        self._times.append(t)

    def let_in(self, ticket: int, ready: float, now: float) -> float:
        """When the payload came in that was ready then, and is committed now. Ask before `see` is given its commit."""
        place = bisect_right(self._times, ready)
        if ticket not in self._open or not place or self._counts[place - 1] < STAGED:
            return ready
        room = max(self._freed, self._since) if ticket == self._next else self._freed
        return min(room, now) if room > ready + ROUNDING else ready


def stretches_of(
    since: float, granted: float, now: float, commit: facts.Commit, turns: Turns
) -> list[Stretch]:
    """From the end of the ticket before, `since`, to the commit. `turns` knows all that came before the commit."""
    if commit.pull is None:
        return [Stretch(WAITING, since, granted), Stretch(UNREPORTED, max(since, granted), now)]
    asked, begun, pulled, computed = moments(since, granted, now, commit)
    let_in = turns.let_in(commit.ticket, computed, now)
    return [
        Stretch(COMPUTING, since, asked),
        Stretch(WAITING, asked, granted),
        Stretch(RECEIVING, begun, pulled),
        Stretch(COMPUTING, pulled, computed),
        Stretch(TURN, computed, let_in),
        Stretch(SENDING, let_in, now),
    ]
