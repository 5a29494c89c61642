"""The shelf: named compositions, each with its guarantee, its source and its knobs."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from psserver.policies.gates import Flush, Immediate, Slack
from psserver.policies.machine import Composition
from psserver.policies.policy import PolicyError
from psserver.policies.staleness import (
    Block,
    Compensate,
    Downweight,
    DropStale,
    KeepAll,
    StalenessRule,
)
from psserver.policies.triggers import Count, Everyone


def knob(default: Any, doc: str) -> Any:
    return field(default=default, metadata={"doc": doc})


@dataclass(frozen=True, slots=True)
class Sync:
    """Every update is the mean of one gradient per worker, all of the same version."""

    guarantee: ClassVar[str] = "staleness 0; equals single-process training on the combined batch"
    source: ClassVar[str] = "BSP; backup workers: Chen et al. 2016, Revisiting Distributed Synchronous SGD"

    backup: int = knob(0, "workers whose gradient an update does not wait for; late ones are cancelled")

    def compose(self, workers: int) -> Composition:
        at_least("backup", self.backup, 0)
        if self.backup >= workers:
            raise PolicyError(
                f"policy.backup is {self.backup}, but there are {workers} workers: an update needs at "
                f"least one contribution; expected backup <= {workers - 1}"
            )
        return Composition(
            gate=Flush(),
            trigger=Everyone(workers, self.backup),
            staleness=DropStale(0),
            cancel=self.backup > 0,
            # With backups it is chance who is in time; then there is no order to wait for.
            order="rank" if self.backup == 0 else "commit",
        )


@dataclass(frozen=True, slots=True)
class Async:
    """Every gradient is applied as it comes, whatever version it was computed from."""

    guarantee: ClassVar[str] = "no waiting; mean staleness n - 1 with n workers; no bound on the maximum"
    source: ClassVar[str] = "Downpour SGD: Dean et al. 2012, Large Scale Distributed Deep Networks"

    def compose(self, workers: int) -> Composition:
        return Composition(gate=Immediate(), trigger=Count(1), staleness=KeepAll())


@dataclass(frozen=True, slots=True)
class Bounded:
    """An update is the mean of `aggregate` gradients; what is too stale is treated as `on_stale` says."""

    guarantee: ClassVar[str] = (
        "on_stale drop and block: staleness <= max_staleness for every applied gradient; "
        "block drops nothing, drop holds nobody up"
    )
    source: ClassVar[str] = (
        "K-batch-async: Dutta et al. 2018; downweight: Mishchenko et al. 2022; "
        "compensate: DC-ASGD, Zheng et al. 2017"
    )
    rules: ClassVar[dict[str, Callable[["Bounded"], StalenessRule]]] = {
        "drop": lambda b: DropStale(b.max_staleness),
        "downweight": lambda b: Downweight(b.max_staleness),
        "compensate": lambda b: Compensate(b.max_staleness, b.compensation),
        "block": lambda b: Block(b.max_staleness),
    }

    aggregate: int = knob(1, "contributions per update (K)")
    max_staleness: int = knob(4, "the bound s, in versions")
    on_stale: str = knob("drop", "beyond the bound: drop | downweight | compensate | block")
    compensation: float = knob(0.04, "lambda of on_stale = compensate")

    def compose(self, workers: int) -> Composition:
        at_least("aggregate", self.aggregate, 1)
        at_least("max_staleness", self.max_staleness, 0)
        at_least("compensation", self.compensation, 0)
        if self.aggregate > workers:
            raise PolicyError(
                f"policy.aggregate is {self.aggregate}, but there are {workers} workers: expected at most "
                "one contribution per worker and update; lower aggregate or add workers"
            )
        if self.on_stale not in self.rules:
            raise PolicyError(
                f"policy.on_stale is {self.on_stale!r}; expected one of {', '.join(self.rules)}"
            )
        return Composition(Immediate(), Count(self.aggregate), self.rules[self.on_stale](self))


@dataclass(frozen=True, slots=True)
class Ssp:
    """Gradients are applied as they come; nobody runs more than `slack` clocks ahead of the slowest."""

    guarantee: ClassVar[str] = "executing gap <= slack, in clocks (version staleness has no such bound)"
    source: ClassVar[str] = (
        "Ho et al. 2013, More Effective Distributed ML via a Stale Synchronous Parallel PS"
    )

    slack: int = knob(3, "clocks that a worker may be ahead of the slowest")

    def compose(self, workers: int) -> Composition:
        at_least("slack", self.slack, 0)
        return Composition(gate=Slack(self.slack), trigger=Count(1), staleness=KeepAll())


SHELF: dict[str, Any] = {"sync": Sync, "async": Async, "bounded": Bounded, "ssp": Ssp}


def at_least(name: str, value: float, least: float) -> None:
    if value < least:
        raise PolicyError(f"policy.{name} is {value}; expected at least {least}")


def knob_docs(entry: Any) -> list[tuple[str, object, str]]:
    """(name, default, meaning) of each knob."""
    return [(f.name, f.default, f.metadata["doc"]) for f in fields(entry)]
