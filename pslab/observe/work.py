"""A decision log as pieces of work: what each worker did under each ticket, and when."""

from collections.abc import Sequence
from dataclasses import dataclass

from pslab.compare.timeline import WAITING, WASTED, Stretch, Turns, stretches_of
from pswire.decisions import entries as facts


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
    def begin(self) -> float:
        return self.held[0].begin

    @property
    def end(self) -> float:
        return self.held[-1].end


class WorkReader:
    """Give it the facts of a log in order; it returns the work that each one ends.

    The rules are those of `pslab.compare.timeline`: the two agree to the second.
    """

    def __init__(self) -> None:
        # When a worker's last ticket ended, or it joined; absent while it is away, or done.
        self._free: dict[str, float] = {}
        # Worker -> its open tickets in the order of their grants: (version, time of the grant).
        self._held: dict[str, dict[int, tuple[int, float]]] = {}
        # Worker -> the cancelled ticket that it may still work on, until its next grant.
        self._wasted: dict[str, tuple[int, int]] = {}
        self._turns = Turns()

    def see(self, fact: facts.Entry, t: float) -> Sequence[Work]:
        found = self._ended(fact, t)
        self._turns.see(fact, t)
        return found

    def _ended(self, fact: facts.Entry, t: float) -> Sequence[Work]:
        match fact:
            case facts.Join(worker):
                self._free[worker], self._held[worker] = t, {}
            case facts.Grant(worker, ticket, version):
                self._held.setdefault(worker, {})[ticket] = version, t
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
        base, granted = self._held.get(worker, {}).pop(ticket, (0, t))
        since = self._free.get(worker, granted)
        self._free[worker] = t
        stretches = stretches_of(since, granted, t, commit, self._turns)
        first = 1 + [stretch.kind for stretch in stretches].index(WAITING)
        return Work(worker, ticket, base, tuple(stretches[:first]), tuple(stretches[first:]), commit)

    def _given_up(self, worker: str, ticket: int, t: float, *, cancelled: bool) -> Sequence[Work]:
        held = self._held.get(worker, {})
        oldest = next(iter(held), None)
        found = held.pop(ticket, None)
        # The initial values' ticket is no grant; one that came ahead was not begun.
        if found is None or ticket != oldest:
            return ()
        base, granted = found
        since = self._free.get(worker, granted)
        self._free[worker] = t
        if cancelled:
            self._wasted[worker] = ticket, base
        wait = Stretch(WAITING, since, max(since, granted))
        return [Work(worker, ticket, base, (wait,), (Stretch(WASTED, wait.end, t),), None)]
