"""The evidence by which controllers decide: losses of commits, and the gradient noise scale from norms."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pswire.records import from_plain, to_plain

# Number of updates over which variance and square of the gradient are averaged.
WINDOW: Final = 100
# Most updates whose measure has not come yet.
UNMEASURED: Final = 1024


class Evidence:
    """The facts that a controller has seen. Each method takes one; the base class ignores it."""

    def committed(self, worker: str, loss: float) -> None:
        """Take the loss of a commit, which may not be finite."""

    def applied(self, version: int, parts: Sequence[tuple[float, float]]) -> None:
        """Take an update: the weight of each contribution, and the L2 norm of its gradient."""

    def measured(self, version: int, square: float) -> None:
        """Take the square of the L2 norm of the weighted sum that made `version`."""

    def state(self) -> dict[str, object]:
        """Return everything, JSON-able."""
        raise NotImplementedError

    def restore(self, state: Mapping[str, object]) -> None:
        """Restore what `state` returned. Raises StateError, with nothing changed."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class LossesState:
    """The saved form of `Losses`: (worker, sum, number) since the last `take`."""

    first: float | None
    sums: list[tuple[str, float, int]]


class Losses(Evidence):
    """Each worker's mean loss since the last `take`. `first`: the loss at the beginning, which the controller sets."""

    def __init__(self) -> None:
        self.first: float | None = None
        self._sums: dict[str, tuple[float, int]] = {}

    def committed(self, worker: str, loss: float) -> None:
        if math.isfinite(loss):
            total, count = self._sums.get(worker, (0.0, 0))
            self._sums[worker] = total + loss, count + 1

    def take(self) -> list[float]:
        """Return the mean of each worker that has committed, and begin anew."""
        means = [total / count for total, count in self._sums.values()]
        self._sums.clear()
        return [mean for mean in means if math.isfinite(mean)]

    def state(self) -> dict[str, object]:
        sums = [(worker, *each) for worker, each in self._sums.items()]
        plain: dict[str, object] = to_plain(LossesState(self.first, sums))
        return plain

    def restore(self, state: Mapping[str, object]) -> None:
        saved = from_plain(LossesState, state, "controller")
        self.first = saved.first
        self._sums = {worker: (total, count) for worker, total, count in saved.sums}


@dataclass(frozen=True, slots=True)
class NoiseState:
    """The saved form of `Noise`. `unmeasured`: (version, mean square, sum of weights, effective share)."""

    window: list[tuple[float, float]]
    unmeasured: list[tuple[int, float, float, float]]


class Noise(Evidence):
    """Variance and square of the gradient, estimated from each update of two or more contributions.

    With weights w of sum W, a = sum(w |g|^2) / W, b = |sum(w g)|^2 / W^2 and q = sum(w^2) / W^2: the variance is
    (a - b) / (1 - q) and the square of the mean gradient (b - q a) / (1 - q), without bias if contributions are
    independent. For K equal weights q is 1 / K (McCandlish et al. 2018, appendix A.1).
    """

    def __init__(self) -> None:
        self._window: deque[tuple[float, float]] = deque(maxlen=WINDOW)
        # Version -> a, W and q of its update.
        self._unmeasured: dict[int, tuple[float, float, float]] = {}

    def applied(self, version: int, parts: Sequence[tuple[float, float]]) -> None:
        total = sum(weight for weight, _ in parts)
        if len(parts) < 2 or not total > 0:
            return
        mean = sum(weight * norm * norm for weight, norm in parts) / total
        share = sum(weight * weight for weight, _ in parts) / (total * total)
        if math.isfinite(mean) and share < 1:
            if len(self._unmeasured) >= UNMEASURED:
                del self._unmeasured[next(iter(self._unmeasured))]
            self._unmeasured[version] = mean, total, share

    def measured(self, version: int, square: float) -> None:
        found = self._unmeasured.pop(version, None)
        if found is None:
            return
        mean, total, share = found
        of_mean = square / (total * total)
        variance, of_gradient = (mean - of_mean) / (1 - share), (of_mean - share * mean) / (1 - share)
        if math.isfinite(variance) and math.isfinite(of_gradient):
            self._window.append((variance, of_gradient))

    def means(self) -> tuple[float, float] | None:
        """Return variance and square of the gradient, averaged apart; None below `WINDOW` updates."""
        if len(self._window) < WINDOW:
            return None
        return (
            sum(variance for variance, _ in self._window) / WINDOW,
            sum(square for _, square in self._window) / WINDOW,
        )

    def state(self) -> dict[str, object]:
        unmeasured = [(version, *each) for version, each in self._unmeasured.items()]
        plain: dict[str, object] = to_plain(NoiseState(list(self._window), unmeasured))
        return plain

    def restore(self, state: Mapping[str, object]) -> None:
        saved = from_plain(NoiseState, state, "controller")
        self._window = deque(saved.window, maxlen=WINDOW)
        self._unmeasured = {version: (a, w, q) for version, a, w, q in saved.unmeasured}
