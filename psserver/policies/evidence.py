"""The evidence by which controllers decide: losses of commits, and the gradient noise scale from norms."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

# Number of updates over which variance and square of the gradient are averaged.
WINDOW: Final = 100
# Most updates whose measure has not come yet.
UNMEASURED: Final = 1024


class Evidence:
    """The facts that a controller has seen, as plain data. Each method takes one; the base class ignores it."""

    def committed(self, worker: str, loss: float) -> None:
        """Take the loss of a commit, which may not be finite."""

    def applied(self, version: int, parts: Sequence[tuple[float, float]]) -> None:
        """Take an update: the weight of each contribution, and the L2 norm of its gradient."""

    def measured(self, version: int, square: float) -> None:
        """Take the square of the L2 norm of the weighted sum that made `version`."""


@dataclass(slots=True)
class Losses(Evidence):
    """Each worker's mean loss since the last `take`. `first`: the loss at the beginning, which the controller sets."""

    first: float | None = None
    # Worker -> sum and number.
    sums: dict[str, tuple[float, int]] = field(default_factory=dict)

    def committed(self, worker: str, loss: float) -> None:
        if math.isfinite(loss):
            total, count = self.sums.get(worker, (0.0, 0))
            self.sums[worker] = total + loss, count + 1

    def take(self) -> list[float]:
        """Return the mean of each worker that has committed, and begin anew."""
        means = [total / count for total, count in self.sums.values()]
        self.sums.clear()
        return [mean for mean in means if math.isfinite(mean)]


@dataclass(slots=True)
class Noise(Evidence):
    """Variance and square of the gradient, estimated from each update of two or more contributions.

    With weights w of sum W, a = sum(w |g|^2) / W, b = |sum(w g)|^2 / W^2 and q = sum(w^2) / W^2: the variance is
    (a - b) / (1 - q) and the square of the mean gradient (b - q a) / (1 - q), without bias if contributions are
    independent. For K equal weights q is 1 / K (McCandlish et al. 2018, appendix A.1).
    """

    # Of the newest updates: variance, and square of the mean gradient.
    window: list[tuple[float, float]] = field(default_factory=list)
    # Version -> a, W and q of its update.
    unmeasured: dict[int, tuple[float, float, float]] = field(default_factory=dict)

    def applied(self, version: int, parts: Sequence[tuple[float, float]]) -> None:
        total = sum(weight for weight, _ in parts)
        if len(parts) < 2 or not total > 0:
            return
        mean = sum(weight * norm * norm for weight, norm in parts) / total
        share = sum(weight * weight for weight, _ in parts) / (total * total)
        if math.isfinite(mean) and share < 1:
            if len(self.unmeasured) >= UNMEASURED:
                del self.unmeasured[next(iter(self.unmeasured))]
            self.unmeasured[version] = mean, total, share

    def measured(self, version: int, square: float) -> None:
        found = self.unmeasured.pop(version, None)
        if found is None:
            return
        mean, total, share = found
        of_mean = square / (total * total)
        variance, of_gradient = (mean - of_mean) / (1 - share), (of_mean - share * mean) / (1 - share)
        if math.isfinite(variance) and math.isfinite(of_gradient):
            self.window = [*self.window, (variance, of_gradient)][-WINDOW:]

    def means(self) -> tuple[float, float] | None:
        """Return variance and square of the gradient, averaged apart; None below `WINDOW` updates."""
        if len(self.window) < WINDOW:
            return None
        return (
            sum(variance for variance, _ in self.window) / WINDOW,
            sum(square for _, square in self.window) / WINDOW,
        )
