"""Asynchronous updates that drop, shrink, correct or await old gradients."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from psserver.policies.builtin.spec import ONE_EACH, WORKERS, Cost, Facts, PolicySpec
from psserver.policies.composition import Composition
from psserver.policies.declarations import BARE, TensorParts
from psserver.policies.parts.gates import Immediate
from psserver.policies.parts.staleness_rules import (
    Block,
    Compensate,
    Downweight,
    DropStale,
    KeepAll,
    StalenessRule,
)
from psserver.policies.parts.triggers import CancelStale, Count
from psserver.policies.parts.weights import Concurrency
from pswire.knobs import flag, integer, number, word


@dataclass(frozen=True, slots=True)
class Bounded(PolicySpec):
    """An update is the mean of `aggregate` gradients; `on_stale` says how one that is too stale is treated.

    Beyond `max_staleness` = s: `drop` it; `downweight` it by (s + 1) /
    (staleness + 1); `compensate` it to first order for how the weights have
    moved since; or `block` the update until the old work is committed, which makes the
    update larger.
    """

    name: ClassVar[str] = "bounded"
    use_when: ClassVar[str] = (
        "you want to say how many gradients make an update and how old they may be, and what becomes of "
        "older ones."
    )
    guarantee: ClassVar[str] = (
        "on_stale drop and block: staleness <= max_staleness for every applied gradient; "
        "block drops nothing, drop holds nobody up"
    )
    source: ClassVar[str] = (
        "K-batch-async: Dutta et al. 2018; downweight: Mishchenko et al. 2022; "
        "compensate: DC-ASGD, Zheng et al. 2017"
    )
    cost: ClassVar[Cost] = Cost(
        "one sum; compensate: every version that unfinished work started from",
        "one addition; a step of the optimizer per K",
        "drop: the work of slow workers; block: updates wait for it",
    )
    rules: ClassVar[dict[str, Callable[["Bounded"], StalenessRule]]] = {
        "drop": lambda b: DropStale(b.max_staleness),
        "downweight": lambda b: Downweight(b.max_staleness),
        "compensate": lambda b: Compensate(b.max_staleness, b.compensation),
        "block": lambda b: Block(b.max_staleness),
    }
    label: ClassVar[str] = "K={aggregate}, s<={max_staleness}, {on_stale}"

    aggregate: int = integer(1, "contributions per update (K)", at_least=1, at_most=WORKERS, because=ONE_EACH)
    max_staleness: int = integer(4, "the bound s, in versions", at_least=0)
    on_stale: str = word("drop", "how contributions beyond the bound are treated", rules)
    compensation: float = number(0.04, "lambda of on_stale = compensate", at_least=0)

    def compose(self, workers: int) -> Composition:
        tensors = TensorParts("taylor") if self.on_stale == "compensate" else BARE
        return Composition(
            Immediate(), Count(self.aggregate), self.rules[self.on_stale](self), tensors=tensors
        )

    def facts(self, workers: int) -> Facts:
        return Facts(
            size=None if self.on_stale == "block" else self.aggregate,
            max_staleness=self.max_staleness if self.on_stale in ("drop", "block") else None,
            limit="max_staleness",
            drops=self.on_stale == "drop",
            free=1 if self.on_stale in ("downweight", "compensate") else None,
        )


@dataclass(frozen=True, slots=True)
class DelayAdaptive(PolicySpec):
    """Every gradient is applied as it comes; beyond a staleness of M its learning rate is M / staleness.

    With M = the number of workers, convergence depends on that number and not on the delay of the slowest worker.
    """

    name: ClassVar[str] = "delay-adaptive"
    use_when: ClassVar[str] = (
        "async does well until a worker comes back very late: only gradients later than usual are made smaller."
    )
    guarantee: ClassVar[str] = (
        "no waiting; lr_scale = M / max(M, staleness): the same as async while staleness <= M"
    )
    source: ClassVar[str] = (
        "Mishchenko et al. 2022, Asynchronous SGD Beats Minibatch SGD Under Arbitrary Delays; "
        "Koloskova et al. 2022, Sharper Convergence Guarantees for Asynchronous SGD"
    )
    cost: ClassVar[Cost] = Cost("nothing", "one step of the optimizer", "nothing")

    concurrency: int = integer(0, "staleness that costs nothing (M); 0: the number of workers", at_least=0)

    def compose(self, workers: int) -> Composition:
        scale = Concurrency(self.concurrency or workers)
        return Composition(Immediate(), Count(1), KeepAll(), lr_scale=scale)

    def facts(self, workers: int) -> Facts:
        return Facts(size=1, free=1)


@dataclass(frozen=True, slots=True)
class Ringmaster(PolicySpec):
    """Every gradient less than `threshold` versions old is applied as it comes; older ones are ignored.

    With `stops` a worker is interrupted as soon as its work has become too old,
    instead of finishing it in vain. A threshold of 1 uses only the fastest worker; an infinite one is async.
    """

    name: ClassVar[str] = "ringmaster"
    use_when: ClassVar[str] = (
        "some workers are so slow that their gradients do harm, and every worker has the same kind of data."
    )
    guarantee: ClassVar[str] = "no waiting; staleness <= threshold - 1 for every applied gradient"
    source: ClassVar[str] = (
        "Maranjyan, Tyurin and Richtarik 2025, Ringmaster ASGD: The First Asynchronous SGD with "
        "Optimal Time Complexity"
    )
    cost: ClassVar[Cost] = Cost(
        "nothing",
        "one step of the optimizer, or nothing",
        "the work of workers that are more than `threshold` times slower; with data that differ between "
        "workers, theirs is missing",
    )

    threshold: int = integer(
        4,
        "staleness from which on a gradient is ignored (R); theory: variance of a gradient / target",
        at_least=1,
    )
    stops: bool = flag(False, "cancel work that has become too old, rather than await it")

    def compose(self, workers: int) -> Composition:
        cancel = CancelStale(self.threshold) if self.stops else None
        return Composition(Immediate(), Count(1), DropStale(self.threshold - 1), cancel=cancel)

    def facts(self, workers: int) -> Facts:
        bound, stops = self.threshold - 1, self.stops
        return Facts(size=1, max_staleness=bound, limit="threshold - 1", drops=not stops, cancels=stops)


@dataclass(frozen=True, slots=True)
class DcAsgd(PolicySpec):
    """Every gradient is applied as it comes, corrected to first order for how the weights have moved since.

    g' = g + lambda g*g*(x_now - x_base): the square of the gradient stands in
    for the diagonal of the Hessian. lambda is constant (DC-ASGD-c).
    """

    name: ClassVar[str] = "dc-asgd"
    use_when: ClassVar[str] = (
        "async loses accuracy by staleness, the loss is a cross-entropy, and the servers run sgd."
    )
    guarantee: ClassVar[str] = (
        "no waiting; every stale gradient is compensated with `compensation`; 0 is async"
    )
    source: ClassVar[str] = "DC-ASGD: Zheng et al. 2017, Asynchronous SGD with Delay Compensation, eq. 10"
    cost: ClassVar[Cost] = Cost(
        "every version that unfinished work started from: at most one per worker",
        "one step of the optimizer, and three operations per weight",
        "nothing",
    )

    compensation: float = number(0.04, "lambda", at_least=0)

    def compose(self, workers: int) -> Composition:
        correct = Compensate(0, self.compensation)
        return Composition(Immediate(), Count(1), correct, tensors=TensorParts("taylor"))

    def facts(self, workers: int) -> Facts:
        return Facts(size=1, free=1)
