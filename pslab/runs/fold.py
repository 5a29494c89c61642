"""What a decision log says so far: the one fold over its entries, for everybody who reads logs.

Give it the entries in order, and ask it before or behind each one. It believes the log and never complains: checks
compare each new entry with it. `pslab.runs.work` adds what workers did with their time.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from pswire.decisions import entries as e
from pswire.decisions.counting import Pending

OPEN, COMMITTED, INSTALLED = "open", "committed", "installed"
APPLIED, DROPPED, CANCELLED, ABANDONED = "applied", "dropped", "cancelled", "abandoned"


@dataclass(slots=True)
class Ticket:
    """One unit of work. `base` is None for the ticket that brings the initial values; `granted` is in seconds."""

    number: int
    worker: str
    base: int | None
    turn: int | None
    granted: float
    state: str = OPEN
    samples: int = 0


@dataclass(slots=True)
class Member:
    """One incarnation of a worker. Present until it leaves; live until it leaves or is done."""

    worker: str
    incarnation: int
    rank: int
    # Had a ticket of its own to work on; before that the policy need not know it.
    granted: bool = False
    done: bool = False
    gone: bool = False

    @property
    def live(self) -> bool:
        return not (self.done or self.gone)


def mean_of(histogram: Mapping[int, int]) -> float:
    """Return the mean staleness of a count by staleness; NaN of nothing."""
    count = sum(histogram.values())
    return sum(tau * n for tau, n in histogram.items()) / count if count else math.nan


class Fold:
    """State after the entries seen so far.

    `job`: as the newest resume names it. `version`: None until the first values are installed. `began`: seconds at the
    first grant; `seconds`: at the last entry of the job, or at its stop. `members`: by worker, in the order in which
    they first joined. `held`: tickets without a fate, in the order of their grants. `tickets`: those too, and with
    `remember` all others. `committed`, `applied`, `dropped`, `cancelled`: contributions, or tickets, by worker.
    `reasons`: of drops. `staleness`: by worker, of what was applied. `samples`: of all commits.
    `pending`: what was committed and has no fate, and the newest update.
    """

    def __init__(self, *, remember: bool = False) -> None:
        self.entries = 0
        self.job: e.Job | None = None
        self.stop: e.Stop | None = None
        self.version: int | None = None
        self.began: float | None = None
        self.seconds = 0.0
        self.members: dict[str, Member] = {}
        self.held: dict[int, Ticket] = {}
        self.tickets: dict[int, Ticket] = {} if remember else self.held
        self.committed: Counter[str] = Counter()
        self.applied: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.cancelled: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.staleness: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self.samples = 0
        self.pending = Pending()

    @classmethod
    def of(cls, log: Iterable[tuple[e.Entry, float]]) -> Self:
        """Return the state after a whole log."""
        found = cls()
        for fact, t in log:
            found.see(fact, t)
        return found

    def see(self, fact: e.Entry, t: float) -> None:
        """Take one entry as true, made at `t` seconds."""
        self.entries += 1
        if self.stop is None:
            # What follows on the stop is not part of the job's time.
            self.seconds = t
        take = _TAKE.get(type(fact))
        if take is not None:
            take(self, fact, t)

    # What is asked

    @property
    def versions(self) -> int:
        """Updates made."""
        return self.version or 0

    @property
    def histogram(self) -> Counter[int]:
        """Applied contributions by staleness, over all workers."""
        return sum(self.staleness.values(), Counter())

    def reading(self) -> Iterator[Ticket]:
        """Tickets that were granted to read a version and have no fate yet, in the order of their grants."""
        return (ticket for ticket in self.held.values() if ticket.base is not None)

    def playing(self) -> Iterator[Member]:
        """Members that surely take part: granted before, not done, not gone."""
        return (member for member in self.members.values() if member.live and member.granted)

    def age(self, ticket: Ticket) -> int:
        """Versions made since the ticket's base; 0 for an initial-values ticket."""
        return 0 if ticket.base is None or self.version is None else self.version - ticket.base

    # What is seen

    def _job(self, fact: e.Job, t: float) -> None:
        self.job = fact

    def _restore(self, fact: e.Restore, t: float) -> None:
        self.stop, self.seconds = None, t
        if self.job is not None:
            self.job = replace(self.job, job=fact.job, servers=fact.servers)

    def _stop(self, fact: e.Stop, t: float) -> None:
        self.stop = fact

    def _join(self, fact: e.Join, t: float) -> None:
        self.members[fact.worker] = Member(fact.worker, fact.incarnation, fact.rank)

    def _initialise(self, fact: e.Initialise, t: float) -> None:
        self._open(Ticket(fact.ticket, fact.worker, None, None, t))

    def _install(self, fact: e.Install, t: float) -> None:
        self.version = fact.version
        self._close(fact.ticket, INSTALLED)

    def _grant(self, fact: e.Grant, t: float) -> None:
        if self.began is None:
            self.began = t
        self._open(Ticket(fact.ticket, fact.worker, fact.version, fact.turn, t))
        if (member := self.members.get(fact.worker)) is not None:
            member.granted = True

    def _commit(self, fact: e.Commit, t: float) -> None:
        self.committed[fact.worker] += 1
        self.samples += fact.samples
        self.pending.commit(fact.ticket, fact.samples, fact.loss)
        if (ticket := self.held.get(fact.ticket)) is not None:
            ticket.state, ticket.samples = COMMITTED, fact.samples

    def _apply(self, fact: e.Apply, t: float) -> None:
        self.version = fact.version
        self.pending.apply([part.ticket for part in fact.parts])
        for part in fact.parts:
            self.applied[part.worker] += 1
            self.staleness[part.worker][part.staleness] += 1
            self._close(part.ticket, APPLIED)

    def _drop(self, fact: e.Drop, t: float) -> None:
        self.dropped[fact.worker] += 1
        self.reasons[fact.reason] += 1
        self.pending.drop(fact.ticket)
        self._close(fact.ticket, DROPPED)

    def _cancel(self, fact: e.Cancel, t: float) -> None:
        self.cancelled[fact.worker] += 1
        self._close(fact.ticket, CANCELLED)

    def _abandon(self, fact: e.Abandon, t: float) -> None:
        self._close(fact.ticket, ABANDONED)

    def _leave(self, fact: e.Leave, t: float) -> None:
        if (member := self.members.get(fact.worker)) is not None:
            member.gone = True

    def _done(self, fact: e.Done, t: float) -> None:
        if (member := self.members.get(fact.worker)) is not None:
            member.done = True

    def _resume(self, fact: e.Resume, t: float) -> None:
        if (member := self.members.get(fact.worker)) is not None:
            # To the policy it is a newcomer.
            member.done = member.granted = False

    def _open(self, ticket: Ticket) -> None:
        self.tickets[ticket.number] = self.held[ticket.number] = ticket

    def _close(self, number: int, state: str) -> None:
        if (ticket := self.held.pop(number, None)) is not None:
            ticket.state = state


# Of the other kinds nothing is kept. What a refusal does are the drops behind it.
_TAKE: Mapping[type[e.Entry], Callable[[Fold, Any, float], None]] = {
    e.Job: Fold._job,
    e.Restore: Fold._restore,
    e.Stop: Fold._stop,
    e.Join: Fold._join,
    e.Initialise: Fold._initialise,
    e.Install: Fold._install,
    e.Grant: Fold._grant,
    e.Commit: Fold._commit,
    e.Apply: Fold._apply,
    e.Drop: Fold._drop,
    e.Cancel: Fold._cancel,
    e.Abandon: Fold._abandon,
    e.Leave: Fold._leave,
    e.Done: Fold._done,
    e.Resume: Fold._resume,
}
