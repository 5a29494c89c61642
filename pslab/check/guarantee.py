"""What the policy that decides promises of every update, as its `facts` say."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pslab.check.log_check import LogCheck
from pslab.runs.fold import LogState
from pslab.runs.log import Line
from psserver.decisions import entries as e
from psserver.policies import Facts, Policy, PolicyError, build, facts

# Why any policy's contributions may be dropped.
ALWAYS = ("stopped", e.REPLACED)


class Clocks:
    """The clock of each worker that takes part: the number of its commits, those of its former processes included.

    A worker that has left or was done comes back at its own clock, but not below the floor: the clock that all present
    workers had reached at some commit. A new one starts there. Clocks start anew from 0 once all workers are done.

    `workers`: those that take part already, at clock 0.
    """

    def __init__(self, workers: Sequence[str] = ()) -> None:
        self.present = dict.fromkeys(workers, 0)
        self._left: dict[str, int] = {}
        self._floor = 0

    def see(self, entry: e.Entry) -> None:
        """Take the next entry of the log."""
        match entry:
            case e.Grant(worker) if worker not in self.present:
                self.present[worker] = max(self._floor, self._left.pop(worker, 0))
            case e.Commit(worker) if worker in self.present:
                self.present[worker] += 1
                self._floor = max(self._floor, self.slowest)
            case e.Leave(worker) | e.Done(worker) if worker in self.present:
                self._left[worker] = self.present.pop(worker)
                if isinstance(entry, e.Done) and not self.present:
                    self._left, self._floor = {}, 0

    @property
    def slowest(self) -> int:
        """The least clock; 0 if nobody takes part."""
        return min(self.present.values(), default=0)

    def lead(self, worker: str) -> int:
        """Return how far a worker that takes part is ahead of the slowest."""
        return self.present[worker] - self.slowest


class PolicyGuarantee(LogCheck):
    """The facts of the built-in policy that decides hold, and the job's first entry declares what the policy uses.

    Those of a policy that takes over hold in full once it has settled.
    """

    name = "policy guarantee"

    def __init__(self) -> None:
        self._name = ""
        # None: of a policy that is not built in nothing is known.
        self._facts: Facts | None = None
        self._ahead = True
        self._unknown: set[str] = set()
        # Clocks, where the policy bounds them; they go on under the next one that does.
        self._clocks: Clocks | None = None
        # Tickets from before the policy, whose staleness it did not bound; whether it has not settled yet.
        self._former: frozenset[int] = frozenset()
        self._unsettled = False

    def see(self, entry: Line, state: LogState) -> Iterator[str]:
        if self._clocks is not None:
            self._clocks.see(entry.fact)
        match entry.fact:
            case e.Job() as job:
                yield from self._choose(job, job.policy, ())
            case e.Policy() as change if state.job is not None:
                self._former = frozenset(ticket.number for ticket in state.reading())
                self._unsettled = True
                yield from self._choose(state.job, change.policy, [m.worker for m in state.playing()])
            case e.Settled():
                self._unsettled = False
            case _ if self._facts is not None:
                yield from self._broken(entry.fact, self._facts, state)

    def _choose(self, job: e.Job, policy: Mapping[str, Any], playing: Sequence[str]) -> Iterator[str]:
        """Check the facts of `policy` from here on. `playing`: the workers that take part."""
        self._name = str(policy.get("name"))
        knobs = {key: value for key, value in policy.items() if key != "name"}
        try:
            self._facts = facts(self._name, knobs, job.workers)
            if self._facts is None:
                self._unknown.add(self._name)
                return
            built = build(self._name, knobs, job.workers, job.servers)
        except PolicyError as error:
            self._facts = None
            yield str(error)
            return
        self._ahead = built.ahead
        if self._facts.max_lead is None:
            self._clocks = None
        elif self._clocks is None:
            self._clocks = Clocks(playing)
        yield from _misdeclared(job, built)

    def _broken(self, fact: e.Entry, promised: Facts, state: LogState) -> Iterator[str]:
        match fact:
            case e.Drop(worker, ticket, staleness, reason) if reason not in ALWAYS:
                if why := self._undroppable(promised, state, ticket, staleness, reason):
                    yield f"ticket {ticket} of {worker} is dropped as {reason} at staleness {staleness}: {why}"
            case e.Grant(worker, ticket, _, _, True) if not self._ahead and not self._unsettled:
                yield f"{worker} is granted ticket {ticket} ahead, which {self._name} does not permit"
            case e.Grant(worker, ticket) if self._clocks is not None and promised.max_lead is not None:
                lead = self._clocks.lead(worker)
                if lead > promised.max_lead:
                    yield (
                        f"{worker} is granted ticket {ticket} {lead} clocks ahead of the slowest; {self._name} permits "
                        f"{promised.max_lead}"
                    )
            case e.Cancel(worker, ticket, reason) if reason.startswith("version ") and not promised.cancels:
                yield f"ticket {ticket} of {worker} is cancelled for an update; {self._name} cancels nothing"
            case e.Apply() as update if not self._unsettled:
                yield from self._update(update, promised, state)

    def _undroppable(self, promised: Facts, state: LogState, ticket: int, staleness: int, reason: str) -> str:
        """Return why a contribution may not be dropped; empty if it may."""
        committed, bound = state.tickets.get(ticket), promised.max_staleness
        match reason:
            case "stale" if bound is not None and (promised.drops or ticket in self._former):
                return (
                    f"{self._name} applies what is at most {bound} versions old" if staleness <= bound else ""
                )
            case "too few" if promised.fewest > 1:
                return ""
            case "no samples" if promised.by_samples:
                return "it has some" if committed is not None and committed.samples else ""
            case _:
                return f"{self._name} drops nothing for that"

    def _update(self, update: e.Apply, promised: Facts, state: LogState) -> Iterator[str]:
        workers, version = [part.worker for part in update.parts], f"version {update.version}"
        if promised.distinct:
            for worker in sorted({w for w in workers if workers.count(w) > 1}):
                yield f"{version} applies {workers.count(worker)} contributions of {worker}"
        if len(workers) < promised.fewest:
            yield f"{version} has {len(workers)} parts; {self._name} needs {promised.fewest}"
        if promised.size is not None and self._wrong_size(workers, promised.size, promised, state):
            yield f"{version} has {len(workers)} parts; {self._name} takes {promised.size}"
        for part in update.parts:
            bound = promised.max_staleness
            if bound is not None and part.staleness > bound and part.ticket not in self._former:
                yield (
                    f"{version} applies ticket {part.ticket} with staleness {part.staleness}; the bound of "
                    f"{self._name} is {bound}"
                )

    def _wrong_size(self, workers: Sequence[str], size: int, promised: Facts, state: LogState) -> bool:
        if len(workers) >= size or not promised.waits:
            return len(workers) > size
        # Fewer are right only if no other worker could add one.
        there = workers if promised.distinct else ()
        return any(member.worker not in there for member in state.playing())

    def remarks(self, state: LogState) -> Iterator[str]:
        for name in sorted(self._unknown):
            yield f"no guarantee is known for policy {name}; only the properties of all policies were checked"


def _misdeclared(job: e.Job, policy: Policy) -> Iterator[str]:
    """Yield a sentence if the job's entry declares other parts of shards and workers than the policy's."""
    local = policy.local_rule
    rule = None if local.plain else {"name": local.name, **local.knobs}
    for whose, declared, expected in (
        ("shards", job.tensors, policy.tensors.config or None),
        ("workers", job.local, rule),
    ):
        if declared != expected:
            has, wants = dict(declared or {}), dict(expected or {})
            for key in sorted({*has, *wants}):
                if has.get(key) != wants.get(key):
                    yield f"the {whose}' {key} is {has.get(key)}; {policy.name} says {wants.get(key)}"
