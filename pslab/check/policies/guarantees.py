"""What each named policy guarantees, checked on its log.

Sources: the shelf's own documentation of `sync`, `async`, `bounded` and `ssp` (BSP; Chen et al.
2016 for backup workers; Dutta et al. 2018 for K-batch-async; Ho et al. 2013 §3 for SSP).
What the further ones promise is in `shelf`.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pslab.check.ledger import COMMITTED, OPEN, Ledger
from pslab.check.log_check import LogCheck
from pslab.check.policies.shelf import TERMS, Kept
from pslab.check.policies.tensors import misdeclared
from pslab.runs import log as e


class Mean(LogCheck):
    """An update is the mean of its parts, and a part's factor is 1 where nothing else is said."""

    def factor(self, part: e.Part) -> float:
        """The factor that the policy gives this part."""
        return 1.0

    def stale_drop(self, staleness: int) -> str | None:
        """Why a contribution of this staleness must not be dropped as stale; None when it may."""
        return "this policy drops nothing for its staleness"

    def see(self, entry: e.Entry, ledger: Ledger) -> Iterator[str]:
        match entry.fact:
            case e.Apply() as update:
                yield from self._mean(update)
                yield from self.update(update, ledger)
            case e.Drop(worker, ticket, staleness, "stale"):
                if why := self.stale_drop(staleness):
                    yield f"ticket {ticket} of {worker} is dropped as stale at staleness {staleness}: {why}"

    def update(self, update: e.Apply, ledger: Ledger) -> Iterator[str]:
        """Sentences about one update beyond its weights."""
        return iter(())

    def scale(self, update: e.Apply) -> Iterator[str]:
        """Sentences about the update's scale."""
        count = len(update.parts)
        if not math.isclose(update.scale, 1 / count, rel_tol=1e-12):
            yield f"version {update.version} has scale {update.scale}; a mean of {count} needs {1 / count}"

    def _mean(self, update: e.Apply) -> Iterator[str]:
        yield from self.scale(update)
        for part in update.parts:
            if not math.isclose(part.factor, self.factor(part), rel_tol=1e-12):
                yield (
                    f"ticket {part.ticket} with staleness {part.staleness} has factor {part.factor},"
                    f" the policy gives {self.factor(part)}"
                )


class Sync(Mean):
    """sync: staleness 0, and one contribution of each participant (all but `backup` of them) per update."""

    name = "guarantee of sync"

    def __init__(self, knobs: Mapping[str, Any]) -> None:
        self._backup = int(knobs.get("backup", 0))
        # Who had worked when the round began; who comes later need not be in its update.
        self._roster: set[str] = set()
        self._dropped: set[str] = set()

    def stale_drop(self, staleness: int) -> str | None:
        return None if staleness > 0 else "it is fresh"

    def see(self, entry: e.Entry, ledger: Ledger) -> Iterator[str]:
        yield from super().see(entry, ledger)
        match entry.fact:
            case e.Drop(worker):
                self._dropped.add(worker)
            case e.Apply():
                self._roster = {member.worker for member in ledger.playing()}
                self._dropped.clear()

    def update(self, update: e.Apply, ledger: Ledger) -> Iterator[str]:
        workers = [part.worker for part in update.parts]
        for part in update.parts:
            if part.staleness != 0:
                yield f"version {update.version} applies ticket {part.ticket} at staleness {part.staleness}"
        for worker in sorted({w for w in workers if workers.count(w) > 1}):
            yield f"version {update.version} applies {workers.count(worker)} contributions of {worker}"
        present = ({member.worker for member in ledger.playing()} & self._roster) - self._dropped
        missing = sorted(present - set(workers))
        if len(missing) > self._backup:
            but = f" (backup {self._backup} allows {self._backup})" if self._backup else ""
            yield f"version {update.version} is made without {', '.join(missing)}{but}"
        if self._backup == 0:
            used = {part.ticket for part in update.parts}
            for ticket in ledger.held():
                if ticket.state == OPEN and ticket.number not in used:
                    yield (
                        f"version {update.version} leaves out ticket {ticket.number},"
                        f" which {ticket.worker} works on"
                    )


class Robust(Sync):
    """median, trimmed-mean, krum: sync's barrier, all contributions side by side, never too few of them."""

    def __init__(self, name: str, fewest: int) -> None:
        super().__init__({})
        self.name = f"guarantee of {name}"
        self._fewest = fewest

    def scale(self, update: e.Apply) -> Iterator[str]:
        if update.scale != 1.0:
            yield (
                f"version {update.version} has scale {update.scale}; what is aggregated is scaled already and needs 1"
            )

    def see(self, entry: e.Entry, ledger: Ledger) -> Iterator[str]:
        yield from super().see(entry, ledger)
        match entry.fact:
            case e.Fold(ticket):
                yield f"ticket {ticket} is summed before its update; this policy needs all contributions at once"
            case e.Drop(worker, ticket, _, "too few"):
                there = sum(held.state == COMMITTED for held in ledger.held())
                if there >= self._fewest:
                    yield (
                        f"ticket {ticket} of {worker} is dropped among {there} contributions as too few; "
                        f"{self._fewest} are enough"
                    )

    def update(self, update: e.Apply, ledger: Ledger) -> Iterator[str]:
        yield from super().update(update, ledger)
        if len(update.parts) < self._fewest:
            yield f"version {update.version} has {len(update.parts)} parts; this policy needs {self._fewest}"


class Async(Mean):
    """async: every contribution is an update of its own."""

    name = "guarantee of async"

    def update(self, update: e.Apply, ledger: Ledger) -> Iterator[str]:
        if len(update.parts) != 1:
            yield f"version {update.version} has {len(update.parts)} parts, not 1"


class Bounded(Mean):
    """bounded: `aggregate` contributions per update; beyond `max_staleness`, what `on_stale` says."""

    name = "guarantee of bounded"

    def __init__(self, knobs: Mapping[str, Any]) -> None:
        self._aggregate = int(knobs.get("aggregate", 1))
        self._bound = int(knobs.get("max_staleness", 4))
        self._on_stale = str(knobs.get("on_stale", "drop"))
        self._strength = float(knobs.get("compensation", 0.04))

    def factor(self, part: e.Part) -> float:
        if self._on_stale != "downweight" or part.staleness <= self._bound:
            return 1.0
        return (self._bound + 1) / (part.staleness + 1)

    def stale_drop(self, staleness: int) -> str | None:
        if self._on_stale != "drop":
            return f"on_stale is {self._on_stale}"
        return None if staleness > self._bound else f"max_staleness is {self._bound}"

    def update(self, update: e.Apply, ledger: Ledger) -> Iterator[str]:
        yield from self._size(update, ledger)
        for part in update.parts:
            if self._on_stale in ("drop", "block") and part.staleness > self._bound:
                yield (
                    f"version {update.version} applies ticket {part.ticket} with staleness {part.staleness},"
                    f" max_staleness is {self._bound}"
                )
            correct = self._on_stale == "compensate" and part.staleness > self._bound
            if part.compensation != (self._strength if correct else 0.0):
                yield (
                    f"ticket {part.ticket} with staleness {part.staleness} has compensation"
                    f" {part.compensation}, the policy gives {self._strength if correct else 0.0}"
                )

    def _size(self, update: e.Apply, ledger: Ledger) -> Iterator[str]:
        count = len(update.parts)
        # Fewer are right only once nothing more can come, more only while block holds an update back.
        if count < self._aggregate and any(ledger.playing()):
            yield f"version {update.version} has {count} parts, aggregate is {self._aggregate}"
        if count > self._aggregate and self._on_stale != "block":
            yield f"version {update.version} has {count} parts, aggregate is {self._aggregate}"


class Ssp(Mean):
    """ssp: a worker starts its next unit at most `slack` clocks ahead of the slowest that has data."""

    name = "guarantee of ssp"

    def __init__(self, slack: float) -> None:
        self._slack = slack
        # Commits of each member that works. A newcomer starts, with its first grant, at the slowest.
        self._clocks: dict[str, int] = {}

    def see(self, entry: e.Entry, ledger: Ledger) -> Iterator[str]:
        yield from super().see(entry, ledger)
        match entry.fact:
            case e.Leave(worker) | e.Done(worker):
                self._clocks.pop(worker, None)
            case e.Commit(worker) if worker in self._clocks:
                self._clocks[worker] += 1
            case e.Grant(worker, ticket):
                slowest = min(self._clocks.values(), default=0)
                gap = self._clocks.setdefault(worker, slowest) - slowest
                if gap > self._slack:
                    yield (
                        f"{worker} is granted ticket {ticket} at clock {self._clocks[worker]}, {gap} ahead"
                        f" of the slowest (clock {slowest}); slack is {self._slack}"
                    )

    def update(self, update: e.Apply, ledger: Ledger) -> Iterator[str]:
        if len(update.parts) != 1:
            yield f"version {update.version} has {len(update.parts)} parts, not 1"


class Dssp(Ssp):
    """dssp: the same with `upper`; the literal algorithm has no bound."""

    name = "guarantee of dssp"

    def __init__(self, knobs: Mapping[str, Any]) -> None:
        super().__init__(math.inf if knobs.get("literal", False) else int(knobs.get("upper", 15)))


GUARANTEES: Mapping[str, Callable[[Mapping[str, Any]], LogCheck]] = {
    "sync": Sync,
    "async": lambda knobs: Async(),
    "bounded": Bounded,
    "ssp": lambda knobs: Ssp(int(knobs.get("slack", 3))),
    "dssp": Dssp,
    "median": lambda knobs: Robust("median", 1),
    "trimmed-mean": lambda knobs: Robust("trimmed-mean", 2 * int(knobs.get("trim", 1)) + 1),
    "krum": lambda knobs: Robust("krum", 2 * int(knobs.get("byzantine", 0)) + 3),
    # What their workers do between pull and push, a log of decisions does not show; the gate and trigger it does.
    "local-sgd": lambda knobs: Sync({}),
    "diloco": lambda knobs: Sync({}),
    "local-async": lambda knobs: Async(),
    "easgd": lambda knobs: Async(),
    "dana-slim": lambda knobs: Async(),
}


def guarantee(job: e.JobEntry) -> LogCheck:
    """The promise of the job's policy; an empty one for a policy of the user's.

    Raises ValueError, TypeError or ArithmeticError for knobs that no policy accepts.
    """
    name = str(job.policy.get("name"))
    if name in TERMS:
        return Kept(name, TERMS[name](job.policy, job.workers))
    return GUARANTEES[name](job.policy) if name in GUARANTEES else LogCheck()


class PolicyGuarantee(LogCheck):
    """The named policy's own guarantee, chosen by the job entry; nothing for a policy of the user's."""

    name = "policy guarantee"

    def __init__(self) -> None:
        self._promise = LogCheck()

    def see(self, entry: e.Entry, ledger: Ledger) -> Iterator[str]:
        if isinstance(entry.fact, e.JobEntry):
            if entry.fact.policy.get("name") in {**TERMS, **GUARANTEES}:
                yield from misdeclared(entry.fact)
            try:
                self._promise = guarantee(entry.fact)
            except (ValueError, TypeError, ArithmeticError) as error:
                yield f"the policy {entry.fact.policy} has a knob that makes no sense: {error}"
        yield from self._promise.see(entry, ledger)

    def finish(self, ledger: Ledger) -> Iterator[str]:
        yield from self._promise.finish(ledger)

    def remarks(self, ledger: Ledger) -> Iterator[str]:
        if type(self._promise) is LogCheck and ledger.job is not None:
            name = ledger.job.policy.get("name")
            yield f"no guarantee is known for policy {name}; the general promises were checked"
