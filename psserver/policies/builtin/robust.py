"""Barriers that tolerate a few bad workers: an update is not a mean, but what most workers agree on."""

from dataclasses import dataclass
from typing import ClassVar

from psserver.policies.builtin.spec import WORKERS, Cost, Facts, PolicySpec
from psserver.policies.composition import Composition
from psserver.policies.declarations import TensorParts
from psserver.policies.parts.gates import WaitForUpdate
from psserver.policies.parts.staleness_rules import DropStale
from psserver.policies.parts.triggers import Everyone
from pswire.domains import named
from pswire.knobs import integer

YIN = "Yin et al. 2018, Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates"
WAITS = "an update takes as long as the slowest worker; honest gradients count for less than in a mean"


def _barrier(workers: int, tensors: TensorParts) -> Composition:
    """Return a barrier: one fresh gradient of every worker, in the order of ranks."""
    return Composition(WaitForUpdate(), Everyone(workers), DropStale(0), order="rank", tensors=tensors)


@dataclass(frozen=True, slots=True)
class Median(PolicySpec):
    """Every update is the median of one gradient per worker, coordinate by coordinate.

    Of an even number it is the mean of the two in the middle. State that is
    not trained (BatchNorm's averages) moves by the median of its changes. An
    update of fewer than `fewest` gradients (workers have left, or have no more
    data) is not made: they are dropped. Jobs of fewer workers need all of them.
    """

    name: ClassVar[str] = "median"
    use_when: ClassVar[str] = (
        "fewer than half of the workers may send wrong gradients: bad data, broken memory, an attacker."
    )
    guarantee: ClassVar[str] = (
        "staleness 0; every coordinate lies among the honest ones while more than half of an update's "
        "gradients are honest; no update has fewer than `fewest`"
    )
    source: ClassVar[str] = f"coordinate-wise median: {YIN}"
    cost: ClassVar[Cost] = Cost(
        "a gradient of every worker", "sorting them: n log n comparisons per weight", WAITS
    )

    fewest: int = integer(
        3, "gradients of an update at least; with one or two a single bad worker decides", at_least=1
    )

    def compose(self, workers: int) -> Composition:
        knobs = {"fewest": self._needed(workers)}
        return _barrier(workers, TensorParts(aggregator="median", knobs=knobs))

    def facts(self, workers: int) -> Facts:
        return Facts(fewest=self._needed(workers), distinct=True, max_staleness=0, limit="0")

    def _needed(self, workers: int) -> int:
        return min(self.fewest, workers)


@dataclass(frozen=True, slots=True)
class TrimmedMean(PolicySpec):
    """Every update is the mean of one gradient per worker without the `trim` largest and smallest, by coordinate.

    An update of 2 `trim` gradients or fewer (workers have left, or have no
    more data) is not made: they are dropped. State that is not trained moves by
    the same mean of its changes.
    """

    name: ClassVar[str] = "trimmed-mean"
    use_when: ClassVar[str] = (
        "you know how many workers may be wrong at most, and want more of the others' gradients to count "
        "than with median."
    )
    guarantee: ClassVar[str] = (
        "staleness 0; every coordinate lies among the honest ones while at most `trim` gradients of an "
        "update are not; no update has fewer than 2 `trim` + 1"
    )
    source: ClassVar[str] = f"coordinate-wise trimmed mean: {YIN}"
    cost: ClassVar[Cost] = Cost(
        "a gradient of every worker", "sorting them: n log n comparisons per weight", WAITS
    )

    trim: int = integer(
        1,
        "values left out at either end (b)",
        at_least=0,
        at_most=(WORKERS - 1) // 2,
        because="nothing would be left of an update",
    )

    def compose(self, workers: int) -> Composition:
        return _barrier(workers, TensorParts(aggregator="trimmed-mean", knobs={"trim": self.trim}))

    def facts(self, workers: int) -> Facts:
        return Facts(fewest=2 * self.trim + 1, distinct=True, max_staleness=0, limit="0")


@dataclass(frozen=True, slots=True)
class Krum(PolicySpec):
    """Every update is the gradient that is nearest to its nearest fellows: one worker's, or the mean of `select`.

    A gradient's score is the sum of its n - f - 2 smallest squared distances to
    the others (f = `byzantine`); the lowest scores win, and a tie goes to the lower
    rank. With `select` above 1 it is Multi-Krum. An update of fewer than 2 f + 3
    gradients is not made: they are dropped. It needs whole gradients, so there
    must be one server. State that is not trained moves by the median of all
    workers' changes, because a good gradient does not prove that they are good.
    """

    name: ClassVar[str] = "krum"
    use_when: ClassVar[str] = (
        "wrong workers may agree among themselves, and they are far fewer than the others."
    )
    guarantee: ClassVar[str] = (
        "staleness 0; an update lies near the honest mean while at most `byzantine` of its gradients are not "
        "honest; no update has fewer than 2 `byzantine` + 3"
    )
    source: ClassVar[str] = (
        "Krum, Multi-Krum: Blanchard et al. 2017, Machine Learning with Adversaries: Byzantine Tolerant "
        "Gradient Descent"
    )
    cost: ClassVar[Cost] = Cost(
        "a gradient of every worker, on one server", "distances of all pairs: n * n / 2 per weight", WAITS
    )

    byzantine: int = integer(
        0,
        "bad workers to be tolerated (f)",
        at_least=0,
        at_most=(WORKERS - 3) // 2,
        because="there must be at least 2 byzantine + 3 workers",
    )
    select: int = integer(
        1,
        "gradients of the lowest scores whose mean is taken",
        at_least=1,
        at_most=WORKERS - named("byzantine") - 2,
    )

    def compose(self, workers: int) -> Composition:
        knobs = {"byzantine": self.byzantine, "select": self.select}
        return _barrier(workers, TensorParts(aggregator="krum", knobs=knobs))

    def facts(self, workers: int) -> Facts:
        return Facts(fewest=2 * self.byzantine + 3, distinct=True, max_staleness=0, limit="0")
