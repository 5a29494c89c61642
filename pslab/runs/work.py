"""How workers spent their time: the fold over a log, which also says what work each entry ends.

A worker reports times with its commits (see `Times` in the protocol). They lie, in this order, between the end of its
ticket before and the commit: steps before it asked, waiting for the grant, receiving the version, computing. The rest
is sending: the push, its wait for its turn where an update is summed in a fixed order, and the messages of grant and
commit. A ticket that was granted ahead has no wait for the grant, and its receiving is what the training loop still had
to wait for.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pslab.runs.fold import OPEN, LogState
from psserver.decisions import entries as facts
from psserver.decisions.counting import moments

COMPUTING, RECEIVING, SENDING, WAITING = "computing", "receiving", "sending", "waiting for a grant"
# Under a ticket that was cancelled or abandoned. After a cancel it lasts until the next grant, because the worker may
# not have stopped at once.
WASTED = "wasted"
# From grant to commit, of a worker that reports no times.
UNREPORTED = "at work"
KINDS = (COMPUTING, RECEIVING, SENDING, WAITING, WASTED, UNREPORTED)


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

    def work(self, fact: facts.Entry, t: float) -> Sequence[TicketTime]:
        """Take one entry, made at `t` seconds, as true. Return the work that it ends."""
        ended = self._ended(fact, t)
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
        stretches = stretches_of(since, granted, t, commit)
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


def stretches_of(since: float, granted: float, now: float, commit: facts.Commit) -> list[Stretch]:
    """Return the stretches between `since`, the end of the worker's ticket before, and the commit at `now`."""
    if commit.pull is None:
        return [Stretch(WAITING, since, granted), Stretch(UNREPORTED, max(since, granted), now)]
    asked, begun, pulled, computed = moments(since, granted, now, commit)
    return [
        Stretch(COMPUTING, since, asked),
        Stretch(WAITING, asked, granted),
        Stretch(RECEIVING, begun, pulled),
        Stretch(COMPUTING, pulled, computed),
        Stretch(SENDING, computed, now),
    ]
