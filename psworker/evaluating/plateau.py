"""A learning rate that is lowered where evaluations do not get better, as Keras' ReduceLROnPlateau does."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Plateau:
    """After `patience` evaluations in a row of which none was better than the best: `factor` times the rate, but not
    below `minimum`; then it counts anew. Pure.
    """

    patience: int
    factor: float = 0.1
    minimum: float = 0.0
    waited: int = 0

    def add(self, better: bool, rate: float) -> float | None:
        """After an evaluation of a version that was made at `rate`: the rate from now on; None: that one."""
        self.waited = 0 if better else self.waited + 1
        if self.waited < self.patience:
            return None
        self.waited = 0
        lower = max(rate * self.factor, self.minimum)
        return lower if lower < rate else None
