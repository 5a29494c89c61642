"""Updates of whatever arrives: every gradient counts, however old."""

from dataclasses import dataclass
from typing import ClassVar, Literal, cast

from psserver.policies.builtin.spec import ONE_EACH, WORKERS, Cost, Facts, PolicySpec
from psserver.policies.composition import Composition
from psserver.policies.parts.gates import Immediate, WaitForUpdate
from psserver.policies.parts.staleness_rules import KeepAll
from psserver.policies.parts.triggers import Count, Distinct
from psserver.policies.parts.weights import FAMILIES, Inverse
from pswire.knobs import integer, number, word

DUTTA = "Dutta et al. 2018, Slow and Stale Gradients Can Win the Race"


@dataclass(frozen=True, slots=True)
class Async(PolicySpec):
    """Every gradient is applied as it comes, whatever version it was computed from."""

    name: ClassVar[str] = "async"
    use_when: ClassVar[str] = (
        "workers differ in speed, and there are few of them or the learning rate is small. Nobody ever waits."
    )
    guarantee: ClassVar[str] = "no waiting; mean staleness n - 1 with n workers; no bound on the maximum"
    source: ClassVar[str] = "Downpour SGD: Dean et al. 2012, Large Scale Distributed Deep Networks"
    cost: ClassVar[Cost] = Cost("nothing", "one step of the optimizer", "nothing")

    def compose(self, workers: int) -> Composition:
        return Composition(gate=Immediate(), trigger=Count(1), staleness=KeepAll())

    def facts(self, workers: int) -> Facts:
        return Facts(size=1, free=1)


@dataclass(frozen=True, slots=True)
class KAsync(PolicySpec):
    """Every update is the mean of `aggregate` workers' gradients, however old; nobody is cancelled.

    A worker that has contributed waits for the update. The others work on, and their later gradients count too.
    """

    name: ClassVar[str] = "k-async"
    use_when: ClassVar[str] = "async is too unsteady for you, and no worker may be in an update twice."
    guarantee: ClassVar[str] = (
        "every update has `aggregate` different workers (all, when fewer are left); mean staleness "
        "(n - K) / K; nothing is dropped"
    )
    source: ClassVar[str] = f"K-async SGD: {DUTTA}"
    cost: ClassVar[Cost] = Cost(
        "one sum",
        "one addition; a step of the optimizer per K",
        "a contributor idles until the update (exponential times: H_n - H_(n-K) times the mean)",
    )

    aggregate: int = integer(
        2, "contributions per update (K), of different workers", at_least=1, at_most=WORKERS, because=ONE_EACH
    )

    def compose(self, workers: int) -> Composition:
        return Composition(WaitForUpdate(), Distinct(self.aggregate), KeepAll())

    def facts(self, workers: int) -> Facts:
        return Facts(size=self.aggregate, distinct=True, free=self.aggregate)


@dataclass(frozen=True, slots=True)
class KBatchAsync(PolicySpec):
    """Every update is the mean of the next `aggregate` gradients of any workers, however old."""

    name: ClassVar[str] = "k-batch-async"
    use_when: ClassVar[str] = (
        "async is too unsteady, or makes more versions than the servers can publish: updates of several "
        "gradients, and still nobody waits."
    )
    guarantee: ClassVar[str] = "no waiting; mean staleness (n - 1) / K; nothing is dropped"
    source: ClassVar[str] = f"K-batch-async SGD: {DUTTA}"
    cost: ClassVar[Cost] = Cost("one sum", "one addition; a step of the optimizer per K", "nothing")

    aggregate: int = integer(2, "contributions per update (K); above workers: several of each", at_least=1)

    def compose(self, workers: int) -> Composition:
        return Composition(Immediate(), Count(self.aggregate), KeepAll())

    def facts(self, workers: int) -> Facts:
        return Facts(size=self.aggregate, free=1)


@dataclass(frozen=True, slots=True)
class Softsync(PolicySpec):
    """Every update is the mean of the next floor(workers / n) gradients, each divided by its staleness.

    n = 1 is close to synchronous, n = workers is asynchronous. A fresh gradient
    counts 1, like one that is a version old. With the weights 1 / tau the
    largest stable learning rate does not shrink as staleness grows.
    """

    name: ClassVar[str] = "softsync"
    use_when: ClassVar[str] = (
        "async diverges at your learning rate because there are many workers: stale gradients count for less."
    )
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

    n: int = integer(
        1,
        "updates per round of all workers",
        at_least=1,
        at_most=WORKERS,
        because="an update of floor(workers / n) gradients would be empty",
    )

    def compose(self, workers: int) -> Composition:
        return Composition(Immediate(), Count(workers // self.n), KeepAll(), weight=Inverse())

    def facts(self, workers: int) -> Facts:
        return Facts(size=workers // self.n, free=1)


@dataclass(frozen=True, slots=True)
class FedBuff(PolicySpec):
    """Every update takes the next `aggregate` gradients, weighted by their staleness.

    The weight is 1 for a fresh gradient and, tau versions later: `const` 1;
    `inverse` 1 / max(1, tau); `polynomial` (1 + tau) ** -a; `hinge` 1 up to b,
    then 1 / (a (tau - b) + 1). `norm` = "mean" divides the weighted sum by `aggregate`, not by
    the sum of the weights; "sum" divides it by nothing.
    """

    name: ClassVar[str] = "fedbuff"
    use_when: ClassVar[str] = (
        "many workers come and go at very different speeds, and you want to choose how fast old work fades."
    )
    guarantee: ClassVar[str] = "no waiting; mean staleness (n - 1) / K; nothing is dropped"
    source: ClassVar[str] = (
        "FedBuff: Nguyen et al. 2022, Federated Learning with Buffered Asynchronous Aggregation; "
        "hinge: FedAsync, Xie et al. 2019"
    )
    cost: ClassVar[Cost] = Cost("one sum", "one addition; a step of the optimizer per K", "nothing")

    aggregate: int = integer(2, "contributions per update (K; the paper takes 10)", at_least=1)
    weight: str = word("polynomial", "how a weight falls with staleness", FAMILIES)
    a: float = number(0.5, "exponent or slope of `weight`", at_least=0)
    b: int = integer(4, "staleness up to which `hinge` gives full weight", at_least=0)
    norm: str = word("mean", "mean or sum of the weighted gradients", ("mean", "sum"))

    def compose(self, workers: int) -> Composition:
        return Composition(
            Immediate(),
            Count(self.aggregate),
            KeepAll(),
            weight=FAMILIES[self.weight](self.a, self.b),
            norm=cast(Literal["mean", "sum"], self.norm),
        )

    def facts(self, workers: int) -> Facts:
        return Facts(size=self.aggregate, free=1)
