"""Updates of fresh gradients only: late ones are cancelled or dropped."""

from dataclasses import dataclass
from typing import ClassVar

from psserver.policies.builtin.spec import ONE_EACH, WORKERS, Cost, Facts, PolicySpec
from psserver.policies.composition import Composition
from psserver.policies.parts.gates import Immediate, WaitForUpdate
from psserver.policies.parts.staleness_rules import DropStale
from psserver.policies.parts.triggers import CancelStale, Count, Distinct, Everyone
from pswire.knobs import integer, word

DUTTA = "Dutta et al. 2018, Slow and Stale Gradients Can Win the Race"


@dataclass(frozen=True, slots=True)
class Sync(PolicySpec):
    """Every update is the mean of one gradient per worker, all of the same version.

    With `backup` = b an update does not wait for the last b workers: their
    unfinished work is cancelled, and they start anew with the others. With
    `weight` = "samples" it is the mean over samples, so that smaller last
    batches count as in one process; `fit` uses that.
    """

    name: ClassVar[str] = "sync"
    use_when: ClassVar[str] = (
        "workers are about equally fast, or the result has to equal one process or to repeat to the bit. "
        "Begin here."
    )
    guarantee: ClassVar[str] = "staleness 0; equals single-process training on the combined batch"
    source: ClassVar[str] = "BSP; backup workers: Chen et al. 2016, Revisiting Distributed Synchronous SGD"
    cost: ClassVar[Cost] = Cost(
        "one sum",
        "one addition",
        "an update takes as long as the slowest that it waits for (exponential times, n workers: H_n times "
        "the mean); backup wastes b of n gradients",
    )

    backup: int = integer(
        0,
        "workers whose gradient an update does not wait for; late ones are cancelled",
        at_least=0,
        at_most=WORKERS - 1,
        because="an update needs at least one contribution",
    )

    weight: str = word(
        "equal",
        'what a contribution counts: each alike, or by the number of its samples; fit\'s default is "samples"',
        ("equal", "samples"),
    )
    most_samples: int = integer(
        65536,
        'with weight = "samples" the most that a contribution counts for, whatever its worker states',
        at_least=1,
        at_most=2**31,
    )

    def compose(self, workers: int) -> Composition:
        return Composition(
            gate=WaitForUpdate(),
            trigger=Everyone(workers, self.backup),
            staleness=DropStale(0),
            most_samples=self.most_samples if self.weight == "samples" else 0,
            cancel=CancelStale() if self.backup else None,
            # With backups it is chance who is in time; then there is no order to wait for.
            order="commit" if self.backup else "rank",
        )

    def facts(self, workers: int) -> Facts:
        by_samples, cancels = self.weight == "samples", self.backup > 0
        return Facts(distinct=True, max_staleness=0, limit="0", cancels=cancels, by_samples=by_samples)


@dataclass(frozen=True, slots=True)
class KSync(PolicySpec):
    """Every update is the mean of the first `aggregate` workers' gradients; then all start anew.

    Unlike `sync` with `backup`, the number per update stays when workers join
    or leave. The others are cancelled at the update, or (`late` = "drop") work
    on and have their gradient dropped when it comes, as in TensorFlow's
    SyncReplicasOptimizer.
    """

    name: ClassVar[str] = "k-sync"
    use_when: ClassVar[str] = (
        "any worker may be late now and then, and gradients have to be fresh. A worker that is always "
        "among the last is never used, and neither are its data."
    )
    guarantee: ClassVar[str] = (
        "staleness 0; every update has `aggregate` different workers (all, when fewer are left)"
    )
    source: ClassVar[str] = (
        f"K-sync SGD: {DUTTA}; late = drop: Chen et al. 2016; also m-sync SGD: Begunov and Tyurin 2026"
    )
    cost: ClassVar[Cost] = Cost(
        "one sum",
        "one addition",
        "an update takes as long as the K-th of n workers (exponential times: H_n - H_(n-K) times the mean); "
        "n - K of n gradients are wasted",
    )

    aggregate: int = integer(
        2, "contributions per update (K), of different workers", at_least=1, at_most=WORKERS, because=ONE_EACH
    )
    late: str = word("cancel", "how workers that are not among the first are treated", ("cancel", "drop"))

    def compose(self, workers: int) -> Composition:
        cancel = CancelStale() if self.late == "cancel" else None
        return Composition(WaitForUpdate(), Distinct(self.aggregate), DropStale(0), cancel=cancel)

    def facts(self, workers: int) -> Facts:
        return Facts(
            size=self.aggregate,
            distinct=True,
            max_staleness=0,
            limit="0",
            drops=self.late == "drop",
            cancels=self.late == "cancel",
        )


@dataclass(frozen=True, slots=True)
class KBatchSync(PolicySpec):
    """Every update is the mean of the first `aggregate` gradients of any workers; the rest is cancelled.

    A worker that has finished starts again at once from the same version, so a fast worker may contribute several
    gradients to one update.
    """

    name: ClassVar[str] = "k-batch-sync"
    use_when: ClassVar[str] = (
        "workers differ in speed, gradients have to be fresh, and every worker has the same kind of data."
    )
    guarantee: ClassVar[str] = "staleness 0; nobody waits; every update has `aggregate` gradients"
    source: ClassVar[str] = f"K-batch-sync SGD: {DUTTA}"
    cost: ClassVar[Cost] = Cost(
        "one sum",
        "one addition",
        "no waiting (exponential times: K / n of the mean per update); n - 1 started gradients "
        "are cancelled at every update",
    )

    aggregate: int = integer(2, "contributions per update (K); above workers: several of each", at_least=1)

    def compose(self, workers: int) -> Composition:
        return Composition(Immediate(), Count(self.aggregate), DropStale(0), cancel=CancelStale())

    def facts(self, workers: int) -> Facts:
        return Facts(size=self.aggregate, max_staleness=0, limit="0", cancels=True)


@dataclass(frozen=True, slots=True)
class Rennala(PolicySpec):
    """Every update is the mean of the first `aggregate` fresh gradients; stale ones are dropped as they come.

    K-batch-sync without cancelling: nobody is interrupted.
    """

    name: ClassVar[str] = "rennala"
    use_when: ClassVar[str] = "k-batch-sync suits you, but a step that has begun cannot be interrupted."
    guarantee: ClassVar[str] = "staleness 0; nobody waits and nobody is cancelled"
    source: ClassVar[str] = (
        "Rennala SGD: Tyurin and Richtarik 2023, Optimal Time Complexities of Parallel Stochastic Optimization"
    )
    cost: ClassVar[Cost] = Cost(
        "one sum",
        "one addition, or nothing for a stale gradient",
        "work that began before an update is finished in vain: for exponential times, 8 workers and "
        "K = 4 an update takes twice as long as with cancelling",
    )

    aggregate: int = integer(
        2, "fresh contributions per update (K); above workers: several of each", at_least=1
    )

    def compose(self, workers: int) -> Composition:
        return Composition(Immediate(), Count(self.aggregate), DropStale(0))

    def facts(self, workers: int) -> Facts:
        return Facts(size=self.aggregate, max_staleness=0, limit="0", drops=True)
