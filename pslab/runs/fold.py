"""The state of a job after some entries of its decision log: the one fold that every reader of logs uses.

Feed it the entries in order, and query it before or after each one. It believes the log and never raises: the checks
compare each new entry with it. `pslab.runs.work` adds how workers spent their time.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from psserver.decisions import entries as e
from psserver.decisions.counting import Pending

OPEN, COMMITTED, INSTALLED = "open", "committed", "installed"
APPLIED, DROPPED, CANCELLED, ABANDONED = "applied", "dropped", "cancelled", "abandoned"


@dataclass(slots=True, eq=False)
class LoggedTicket:
    """A ticket. Times are in seconds of the log.

    `base`: the version that it was granted; None for the ticket of the initial values. `granted`: when; `previous`:
    when its worker's ticket before was granted, None for the first. `ended`: when it was committed, cancelled or
    abandoned, None while it is open. `samples`: as its commit states them.
    """

    number: int
    worker: str
    base: int | None
    turn: int | None
    granted: float
    previous: float | None = None
    state: str = OPEN
    ended: float | None = None
    samples: int = 0


@dataclass(slots=True)
class LoggedMember:
    """One incarnation of a worker."""

    worker: str
    incarnation: int
    rank: int
    # It was granted a ticket for a gradient. Before that the policy need not know it.
    granted: bool = False
    done: bool = False
    gone: bool = False

    @property
    def live(self) -> bool:
        return not (self.done or self.gone)


def mean_of(histogram: Mapping[int, int]) -> float:
    """Return the mean staleness of counts by staleness; NaN if there are none."""
    count = sum(histogram.values())
    return sum(tau * n for tau, n in histogram.items()) / count if count else math.nan


class LogState:
    """The state after the entries so far.

    `job`: with the name and servers of the newest restore. `model`: once the initial values have settled it.
    `policy`: name and knobs of the one that decides; `changes`: the times at which it changed, with their entries.
    `version`: the newest one; None before the initial values. `began`: seconds at the first grant; `seconds`: at the
    last entry up to the stop.
    `members`: by worker, in the order of their first joins.
    `held`: tickets without a fate, in the order of their grants; `held_of`: the same by worker. `tickets`: with
    `remember` every ticket, otherwise the held ones.
    `committed`, `applied`, `dropped`, `cancelled`: counts by worker;
    `staleness`: of applied contributions, by worker. `samples`: of all commits.
    `pending`: committed contributions without a fate, and the losses of the newest update.
    """

    def __init__(self, *, remember: bool = False) -> None:
        self.entries = 0
        self.job: e.Job | None = None
        self.model: e.Model | None = None
        self.policy: Mapping[str, Any] = {}
        self.changes: list[tuple[float, e.Policy]] = []
        self.stop: e.Stop | None = None
        self.version: int | None = None
        self.began: float | None = None
        self.seconds = 0.0
        self.members: dict[str, LoggedMember] = {}
        self.held: dict[int, LoggedTicket] = {}
        self.held_of: defaultdict[str, list[LoggedTicket]] = defaultdict(list)
        self.tickets: dict[int, LoggedTicket] = {} if remember else self.held
        self.committed: Counter[str] = Counter()
        self.applied: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.cancelled: Counter[str] = Counter()
        self.staleness: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self.samples = 0
        self.pending = Pending()
        # When each worker was granted its newest ticket, whichever of its incarnations that was.
        self._granted: dict[str, float] = {}

    @classmethod
    def of(cls, log: Iterable[tuple[e.Entry, float]]) -> Self:
        """Return the state after a whole log of (entry, seconds)."""
        fold = cls()
        for fact, t in log:
            fold.see(fact, t)
        return fold

    def see(self, fact: e.Entry, t: float) -> None:
        """Take one entry, made at `t` seconds, as true."""
        self.entries += 1
        if self.stop is None:
            # Entries after the stop do not belong to the job's time.
            self.seconds = t
        take = _TAKE.get(type(fact))
        if take is not None:
            take(self, fact, t)

    # Queries

    @property
    def optimizer(self) -> Mapping[str, Any]:
        """Name and knobs of the optimizer; empty until the initial values have settled it."""
        return {} if self.model is None else self.model.optimizer

    @property
    def versions(self) -> int:
        """The number of updates."""
        return self.version or 0

    @property
    def histogram(self) -> Counter[int]:
        """Applied contributions by staleness, over all workers."""
        return sum(self.staleness.values(), Counter())

    def reading(self) -> Iterator[LoggedTicket]:
        """Iterate over held tickets for gradients, in the order of their grants."""
        return (ticket for ticket in self.held.values() if ticket.base is not None)

    def open_of(self, worker: str) -> list[LoggedTicket]:
        """Return the worker's tickets that are neither committed nor over, in the order of their grants."""
        return [ticket for ticket in self.held_of[worker] if ticket.state == OPEN]

    def playing(self) -> Iterator[LoggedMember]:
        """Iterate over the members that certainly take part: granted a ticket, not done, not gone."""
        return (member for member in self.members.values() if member.live and member.granted)

    def age(self, ticket: LoggedTicket) -> int:
        """Return the number of versions made since the ticket's base; 0 for the initial values' ticket."""
        return 0 if ticket.base is None or self.version is None else self.version - ticket.base

    # One method per kind of entry

    def _job(self, fact: e.Job, t: float) -> None:
        self.job = fact
        self.policy = fact.policy

    def _policy(self, fact: e.Policy, t: float) -> None:
        self.policy = fact.policy
        self.changes.append((t, fact))

    def _restore(self, fact: e.Restore, t: float) -> None:
        self.stop, self.seconds = None, t
        if self.job is not None:
            self.job = replace(self.job, job=fact.job, servers=fact.servers)

    def _model(self, fact: e.Model, t: float) -> None:
        self.model = fact

    def _stop(self, fact: e.Stop, t: float) -> None:
        self.stop = fact

    def _join(self, fact: e.Join, t: float) -> None:
        self.members[fact.worker] = LoggedMember(fact.worker, fact.incarnation, fact.rank)

    def _initialise(self, fact: e.Initialise, t: float) -> None:
        self._open(LoggedTicket(fact.ticket, fact.worker, None, None, t))

    def _install(self, fact: e.Install, t: float) -> None:
        self.version = fact.version
        self._close(fact.ticket, INSTALLED)

    def _grant(self, fact: e.Grant, t: float) -> None:
        if self.began is None:
            self.began = t
        worker = fact.worker
        if (member := self.members.get(worker)) is not None:
            member.granted = True
            # One string for all tickets of a worker: every line of the log brings another.
            worker = member.worker
        self._open(LoggedTicket(fact.ticket, worker, fact.version, fact.turn, t, self._granted.get(worker)))
        self._granted[worker] = t

    def _commit(self, fact: e.Commit, t: float) -> None:
        self.committed[fact.worker] += 1
        self.samples += fact.samples
        self.pending.commit(fact.ticket, fact.samples, fact.loss)
        if (ticket := self.held.get(fact.ticket)) is not None:
            ticket.state, ticket.ended, ticket.samples = COMMITTED, t, fact.samples

    def _apply(self, fact: e.Apply, t: float) -> None:
        self.version = fact.version
        self.pending.apply([part.ticket for part in fact.parts])
        for part in fact.parts:
            self.applied[part.worker] += 1
            self.staleness[part.worker][part.staleness] += 1
            self._close(part.ticket, APPLIED)

    def _drop(self, fact: e.Drop, t: float) -> None:
        self.dropped[fact.worker] += 1
        self.pending.drop(fact.ticket)
        self._close(fact.ticket, DROPPED)

    def _cancel(self, fact: e.Cancel, t: float) -> None:
        self.cancelled[fact.worker] += 1
        self._close(fact.ticket, CANCELLED, t)

    def _abandon(self, fact: e.Abandon, t: float) -> None:
        self._close(fact.ticket, ABANDONED, t)

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

    def _open(self, ticket: LoggedTicket) -> None:
        if (former := self.held.get(ticket.number)) is not None:
            # A damaged log grants a number twice.
            self.held_of[former.worker].remove(former)
        self.tickets[ticket.number] = self.held[ticket.number] = ticket
        self.held_of[ticket.worker].append(ticket)

    def _close(self, number: int, state: str, t: float | None = None) -> None:
        if (ticket := self.held.pop(number, None)) is not None:
            self.held_of[ticket.worker].remove(ticket)
            ticket.state = state
            if t is not None:
                ticket.ended = t


# The other kinds change nothing here.
_TAKE: Mapping[type[e.Entry], Callable[[LogState, Any, float], None]] = {
    e.Job: LogState._job,
    e.Policy: LogState._policy,
    e.Restore: LogState._restore,
    e.Model: LogState._model,
    e.Stop: LogState._stop,
    e.Join: LogState._join,
    e.Initialise: LogState._initialise,
    e.Install: LogState._install,
    e.Grant: LogState._grant,
    e.Commit: LogState._commit,
    e.Apply: LogState._apply,
    e.Drop: LogState._drop,
    e.Cancel: LogState._cancel,
    e.Abandon: LogState._abandon,
    e.Leave: LogState._leave,
    e.Done: LogState._done,
    e.Resume: LogState._resume,
}
