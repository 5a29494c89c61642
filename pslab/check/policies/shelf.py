"""What the further named policies guarantee, as terms that one promise compares a log with.

The formulas stand here a second time, on purpose: a check that shares the code that it checks
finds nothing. Sources: those that `ps-lab policies NAME` prints.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pslab.check.ledger import COMMITTED, OPEN, Ledger
from pslab.check.log_check import LogCheck
from pslab.runs import log as e

Knobs = Mapping[str, Any]


def _one(staleness: int) -> float:
    return 1.0


@dataclass(frozen=True, slots=True)
class Terms:
    """What an update of a policy looks like.

    `size` contributions, of different workers (who then wait for the update) when `distinct`.
    `bound`: the largest staleness applied; what is beyond is dropped as stale. None: no bound.
    `cancels`: an update cancels the open tickets that are so many versions behind it. None: none.
    """

    size: int = 1
    distinct: bool = False
    bound: int | None = None
    weight: Callable[[int], float] = _one
    lr_scale: Callable[[int], float] = _one
    mean: bool = True
    compensation: float = 0.0
    # Fresh gradients are compensated as well: the compensator learns from them.
    always: bool = False
    cancels: int | None = None


class Kept(LogCheck):
    """Every update, drop and cancel of the log is as the policy's terms say."""

    def __init__(self, name: str, terms: Terms) -> None:
        self.name = f"guarantee of {name}"
        self._terms = terms
        # An update was made, and what it cancels has not been looked at yet.
        self._updated = False

    def see(self, entry: e.Entry, ledger: Ledger) -> Iterator[str]:
        if self._updated and not isinstance(entry.fact, e.Cancel):
            self._updated = False
            yield from self._spared(ledger)
        match entry.fact:
            case e.Apply() as update:
                self._updated = self._terms.cancels is not None
                yield from self._size(update, ledger)
                yield from self._scales(update)
                for part in update.parts:
                    yield from self._part(update, part)
            case e.Drop(worker, ticket, staleness, "stale"):
                if self._terms.bound is None or staleness <= self._terms.bound:
                    bound = "this policy drops nothing" if self._terms.bound is None else self._limit()
                    yield f"ticket {ticket} of {worker} is dropped as stale at staleness {staleness}: {bound}"
            case e.Cancel(worker, ticket, reason) if reason.startswith("version "):
                yield from self._cancelled(worker, ticket, ledger)
            case e.Grant(worker, ticket) if self._terms.distinct:
                for held in ledger.held():
                    if held.worker == worker and held.state == COMMITTED:
                        yield (
                            f"{worker} is granted ticket {ticket} while its ticket {held.number} "
                            "waits for an update"
                        )

    def _limit(self) -> str:
        return f"the policy's bound is {self._terms.bound}"

    def _part(self, update: e.Apply, part: e.Part) -> Iterator[str]:
        terms, which = self._terms, f"ticket {part.ticket} with staleness {part.staleness}"
        if terms.bound is not None and part.staleness > terms.bound:
            yield f"version {update.version} applies {which}, {self._limit()}"
        weight = terms.weight(part.staleness)
        if not math.isclose(part.factor, weight, rel_tol=1e-12):
            yield f"{which} has factor {part.factor}, the policy gives {weight}"
        compensation = terms.compensation if terms.always or part.staleness > 0 else 0.0
        if part.compensation != compensation:
            yield f"{which} has compensation {part.compensation}, the policy gives {compensation}"

    def _scales(self, update: e.Apply) -> Iterator[str]:
        scale = 1 / len(update.parts) if self._terms.mean else 1.0
        if not math.isclose(update.scale, scale, rel_tol=1e-12):
            kind = "mean" if self._terms.mean else "sum"
            yield (
                f"version {update.version} has scale {update.scale}; "
                f"a {kind} of {len(update.parts)} needs {scale}"
            )
        rate = self._terms.lr_scale(max(part.staleness for part in update.parts))
        if not math.isclose(update.lr_scale, rate, rel_tol=1e-12):
            yield f"version {update.version} has lr_scale {update.lr_scale}, the policy gives {rate}"

    def _size(self, update: e.Apply, ledger: Ledger) -> Iterator[str]:
        workers, size = [part.worker for part in update.parts], self._terms.size
        if self._terms.distinct:
            for worker in sorted({w for w in workers if workers.count(w) > 1}):
                yield f"version {update.version} applies {workers.count(worker)} contributions of {worker}"
        # Fewer are right only when nobody is left who could add one.
        others = {member.worker for member in ledger.playing()}
        if self._terms.distinct:
            others -= set(workers)
        if len(workers) > size or (len(workers) < size and others):
            yield f"version {update.version} has {len(workers)} parts, the policy takes {size}"

    def _spared(self, ledger: Ledger) -> Iterator[str]:
        """Open tickets that the last update should have cancelled."""
        age = self._terms.cancels
        assert age is not None
        for ticket in ledger.held():
            if ticket.state == OPEN and ledger.age(ticket) >= age:
                yield (
                    f"ticket {ticket.number} of {ticket.worker} goes on {ledger.age(ticket)} versions after "
                    f"its base; the policy cancels at {age}"
                )

    def _cancelled(self, worker: str, number: int, ledger: Ledger) -> Iterator[str]:
        ticket, age = ledger.tickets.get(number), self._terms.cancels
        if age is None:
            yield f"ticket {number} of {worker} is cancelled for an update: this policy cancels nothing"
        elif ticket is not None and ledger.age(ticket) < age:
            yield (
                f"ticket {number} of {worker} is cancelled {ledger.age(ticket)} versions after its base; "
                f"the policy cancels at {age}"
            )


def _fading(knobs: Knobs) -> Callable[[int], float]:
    """The weight families of fedbuff, by name."""
    a, b = float(knobs.get("a", 0.5)), int(knobs.get("b", 4))
    families: dict[str, Callable[[int], float]] = {
        "const": _one,
        "inverse": lambda tau: 1.0 if tau == 0 else 1 / tau,
        "polynomial": lambda tau: math.exp(-a * math.log1p(tau)),
        "hinge": lambda tau: 1.0 if tau <= b else 1 / (1 + a * (tau - b)),
        "exponential": lambda tau: math.exp(-a * tau),
        "threshold": lambda tau: a if tau > b else 1.0,
    }
    return families.get(str(knobs.get("weight", "polynomial")), _one)


def _k(knobs: Knobs) -> int:
    return int(knobs.get("aggregate", 2))


def _k_sync(knobs: Knobs, workers: int) -> Terms:
    cancels = None if knobs.get("late", "cancel") == "drop" else 1
    return Terms(_k(knobs), distinct=True, bound=0, cancels=cancels)


def _softsync(knobs: Knobs, workers: int) -> Terms:
    return Terms(workers // int(knobs.get("n", 1)), weight=lambda tau: 1.0 if tau == 0 else 1 / tau)


def _fedbuff(knobs: Knobs, workers: int) -> Terms:
    return Terms(_k(knobs), weight=_fading(knobs), mean=knobs.get("norm", "mean") == "mean")


def _delay_adaptive(knobs: Knobs, workers: int) -> Terms:
    m = int(knobs.get("concurrency", 0)) or workers
    return Terms(lr_scale=lambda tau: 1.0 if tau <= m else m / tau)


def _ringmaster(knobs: Knobs, workers: int) -> Terms:
    threshold = int(knobs.get("threshold", 4))
    return Terms(bound=threshold - 1, cancels=threshold if knobs.get("stops", False) else None)


TERMS: Mapping[str, Callable[[Knobs, int], Terms]] = {
    "k-sync": _k_sync,
    "k-batch-sync": lambda knobs, workers: Terms(_k(knobs), bound=0, cancels=1),
    "rennala": lambda knobs, workers: Terms(_k(knobs), bound=0),
    "k-async": lambda knobs, workers: Terms(_k(knobs), distinct=True),
    "k-batch-async": lambda knobs, workers: Terms(_k(knobs)),
    "softsync": _softsync,
    "fedbuff": _fedbuff,
    "delay-adaptive": _delay_adaptive,
    "ringmaster": _ringmaster,
    "dc-asgd": lambda knobs, workers: Terms(compensation=float(knobs.get("compensation", 0.04))),
    "dc-asgd-a": lambda knobs, workers: Terms(
        compensation=float(knobs.get("compensation", 2.0)), always=True
    ),
    "gap-aware": lambda knobs, workers: Terms(compensation=1.0, always=True),
}
