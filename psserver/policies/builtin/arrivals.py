"""Updates of whatever arrives: every gradient counts, however old."""

from dataclasses import dataclass
from typing import ClassVar, Literal, cast

from psserver.policies.builtin.spec import Cost, PolicySpec, at_least, at_most_all, knob, one_of
from psserver.policies.composed import Composition
from psserver.policies.parts.gates import Immediate, WaitForUpdate
from psserver.policies.parts.staleness import KeepAll
from psserver.policies.parts.triggers import Count, Distinct
from psserver.policies.parts.weights import FAMILIES, Inverse
from psserver.policies.policy import PolicyError

DUTTA = "Dutta et al. 2018, Slow and Stale Gradients Can Win the Race"


@dataclass(frozen=True, slots=True)
class Async(PolicySpec):
    """Every gradient is applied as it comes, whatever version it was computed from."""

    guarantee: ClassVar[str] = "no waiting; mean staleness n - 1 with n workers; no bound on the maximum"
    source: ClassVar[str] = "Downpour SGD: Dean et al. 2012, Large Scale Distributed Deep Networks"
    cost: ClassVar[Cost] = Cost("nothing", "one step of the optimizer", "nothing")

    def compose(self, workers: int) -> Composition:
        return Composition(gate=Immediate(), trigger=Count(1), staleness=KeepAll())


@dataclass(frozen=True, slots=True)
class KAsync(PolicySpec):
    """Every update is the mean of `aggregate` workers' gradients, however old; nobody is cancelled.

    Who has contributed waits for the update. The others work on undisturbed,
    and what they bring later counts as well.
    """

    guarantee: ClassVar[str] = (
        "every update has `aggregate` different workers (all, when fewer are left); mean staleness "
        "(n - K) / K; nothing is dropped"
    )
    source: ClassVar[str] = f"K-async SGD: {DUTTA}"
    cost: ClassVar[Cost] = Cost(
        "one sum",
        "one addition; a step of the optimizer per K",
        "who has contributed idles until the update (exponential times: H_n - H_(n-K) times the mean)",
    )

    aggregate: int = knob(2, "contributions per update (K), of different workers", "1 .. workers")

    def compose(self, workers: int) -> Composition:
        at_most_all(self.aggregate, workers)
        return Composition(WaitForUpdate(), Distinct(self.aggregate), KeepAll())


@dataclass(frozen=True, slots=True)
class KBatchAsync(PolicySpec):
    """Every update is the mean of the next `aggregate` gradients, whoever sent them, however old."""

    guarantee: ClassVar[str] = "no waiting; mean staleness (n - 1) / K; nothing is dropped"
    source: ClassVar[str] = f"K-batch-async SGD: {DUTTA}"
    cost: ClassVar[Cost] = Cost("one sum", "one addition; a step of the optimizer per K", "nothing")

    aggregate: int = knob(2, "contributions per update (K); above workers: several of each", ">= 1")

    def compose(self, workers: int) -> Composition:
        at_least("aggregate", self.aggregate, 1)
        return Composition(Immediate(), Count(self.aggregate), KeepAll())


@dataclass(frozen=True, slots=True)
class Softsync(PolicySpec):
    """Every update is the mean of the next floor(workers / n) gradients, each divided by its staleness.

    n = 1 is close to synchronous, n = workers is asynchronous. A fresh gradient
    counts 1, like one that is a version old. With the weights 1 / tau the
    largest stable learning rate no longer shrinks as staleness grows.
    """

    guarantee: ClassVar[str] = (
        "no waiting; weight 1 / max(1, staleness); mean staleness about n (and hardly ever above 2 n "
        "while workers are equally fast)"
    )
    source: ClassVar[str] = (
        "n-softsync: Zhang et al. 2016, Staleness-aware Async-SGD for Distributed Deep Learning"
    )
    cost: ClassVar[Cost] = Cost(
        "one sum",
        "one addition; a step of the optimizer per floor(workers / n)",
        "nothing; small learning rates get slower still",
    )

    n: int = knob(1, "updates per round of all workers", "1 .. workers")

    def compose(self, workers: int) -> Composition:
        at_least("n", self.n, 1)
        if self.n > workers:
            raise PolicyError(
                f"policy.n is {self.n}, but there are {workers} workers: an update of floor(workers / n) "
                f"gradients would be empty; expected n <= {workers}"
            )
        return Composition(Immediate(), Count(workers // self.n), KeepAll(), weight=Inverse())


@dataclass(frozen=True, slots=True)
class FedBuff(PolicySpec):
    """Every update takes the next `aggregate` gradients, weighted by their staleness.

    The weight is 1 for a fresh gradient and, tau versions later: `const` 1;
    `inverse` 1 / max(1, tau); `polynomial` (1 + tau) ** -a; `hinge` 1 up to b,
    then 1 / (a (tau - b) + 1); `exponential` exp(-a tau); `threshold` 1 up to
    b, then a. `norm` = "mean" divides the weighted sum by `aggregate`, not by
    the sum of the weights; "sum" divides it by nothing.
    """

    guarantee: ClassVar[str] = "no waiting; mean staleness (n - 1) / K; nothing is dropped"
    source: ClassVar[str] = (
        "FedBuff: Nguyen et al. 2022, Federated Learning with Buffered Asynchronous Aggregation; "
        "hinge: FedAsync, Xie et al. 2019"
    )
    cost: ClassVar[Cost] = Cost("one sum", "one addition; a step of the optimizer per K", "nothing")

    aggregate: int = knob(2, "contributions per update (K; the paper takes 10)", ">= 1")
    weight: str = knob("polynomial", "how a weight falls with staleness", ", ".join(FAMILIES))
    a: float = knob(0.5, "exponent, slope, rate or lower weight of `weight`", ">= 0")
    b: int = knob(4, "staleness up to which `hinge` and `threshold` give full weight", ">= 0")
    norm: str = knob("mean", "mean | sum of the weighted gradients", "mean, sum")

    def compose(self, workers: int) -> Composition:
        at_least("aggregate", self.aggregate, 1)
        one_of("weight", self.weight, FAMILIES)
        at_least("a", self.a, 0)
        at_least("b", self.b, 0)
        one_of("norm", self.norm, ("mean", "sum"))
        return Composition(
            Immediate(),
            Count(self.aggregate),
            KeepAll(),
            weight=FAMILIES[self.weight](self.a, self.b),
            norm=cast(Literal["mean", "sum"], self.norm),
        )
