"""Nesterov momentum refreshed once per `period` updates, for pseudo-gradients that arrive one by one.

With s = rate * g, N = period and q = spread, the k-th update of a period (k = 1 .. N) is

    t' = s (k = 1), t + s (else)
    m' = momentum * m - t' / N (k = N), m (else)
    x' = x + (momentum * m' * (1 - q + q / N) - s / N)     (k = N)
    x' = x + (momentum * m' * (q / N) - s / N)             (else)

Liu et al. (2024), Asynchronous Local-SGD Training for Language Modeling, algorithm 4 (DN), with c = q / N. The form is
that of `nesterov`, whose velocity includes the learning rate: with a period of 1 the two are the same. With a spread of
0 the N updates of a period sum to one Nesterov step on their average gradient; plain momentum would be applied N times
to stale gradients.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from psserver.optimizers.formulas import ZERO, Scalars, Value, pick
from psserver.optimizers.rule import Rule, Values
from pswire.knobs import integer, number


@dataclass(frozen=True, slots=True)
class DelayedNesterov(Rule):
    """Nesterov momentum, refreshed by the average of each `period` updates."""

    learning_rate: ClassVar[float] = 0.01
    # No slot holds the last step: the velocity is the average of a period.
    slots: ClassVar[tuple[str, ...]] = ("momentum", "period_sum")

    momentum: float = number(0.9, "part of the velocity that is kept per period", at_least=0, at_most=1)
    period: int = integer(4, "updates between two refreshments of the velocity", at_least=1)
    spread: float = number(
        0.0, "part of the velocity's effect that all updates of a period share", at_least=0, at_most=1
    )

    def scalars(self, rate: np.float32, step: int) -> Scalars:
        """Return the scalars. `first` and `last` are 1 for the first and the last update of a period, else 0."""
        place, share = (step - 1) % self.period, self.spread / self.period
        last = place == self.period - 1
        return {
            "kept": np.float32(self.momentum),
            "length": np.float32(self.period),
            "first": np.float32(place == 0),
            "last": np.float32(last),
            "weight": np.float32(1 - self.spread + share if last else share),
        }

    def step(self, x: Value, g: Value, s: Values) -> Values:
        step = g * s["rate"]
        total = pick(s["first"] > ZERO, step, s["period_sum"] + step)
        refreshed = s["momentum"] * s["kept"] - total / s["length"]
        velocity = pick(s["last"] > ZERO, refreshed, s["momentum"])
        moved = velocity * s["kept"] * s["weight"] - step / s["length"]
        return {"period_sum": total, "momentum": velocity, "x": x + moved}
