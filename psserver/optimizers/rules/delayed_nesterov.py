"""Nesterov momentum that is refreshed once per `period` updates, for pseudo-gradients that come one by one.

With s = rate * g, N = period and q = spread, the k-th update of a period (k = 1 .. N) is

    t' = s (k = 1), t + s (else)
    m' = momentum * m - t' / N (k = N), m (else)
    x' = x + (momentum * m' * (1 - q + q / N) - s / N)     (k = N)
    x' = x + (momentum * m' * (q / N) - s / N)             (else)

Liu et al. (2024), Asynchronous Local-SGD Training for Language Modeling,
algorithm 4 (DN), with c = q / N. The form is that of our `nesterov`, whose
velocity has the learning rate inside: with a period of 1 the two are the same.
With a spread of 0 the N updates of a period sum to one Nesterov step on their
average gradient; naive momentum would be applied N times to stale gradients.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from psserver.optimizers import loops
from psserver.optimizers.blocks import Array, Kernel, State
from psserver.optimizers.magnitudes import Bounds, Magnitudes
from psserver.optimizers.rule import Fused
from pswire.knobs import integer, number


@dataclass(frozen=True, slots=True)
class DelayedNesterov:
    """Nesterov momentum, refreshed by the average of each `period` updates."""

    learning_rate: ClassVar[float] = 0.01
    initial: ClassVar[float] = 0.0
    slots: ClassVar[tuple[str, ...]] = ("momentum", "period_sum")
    # The velocity is the average of a period, not the last step.
    step_slot: ClassVar[str | None] = None
    per_worker: ClassVar[bool] = False
    weight_decay: ClassVar[float] = 0.0

    momentum: float = number(0.9, "part of the velocity that is kept per period", at_least=0, at_most=1)
    period: int = integer(4, "updates between two refreshments of the velocity", at_least=1)
    spread: float = number(
        0.0, "part of the velocity's effect that all updates of a period share", at_least=0, at_most=1
    )

    def _place(self, step: int) -> tuple[bool, bool, np.float32]:
        """Is the update first and last of its period, and what the velocity weighs in it."""
        place, share = (step - 1) % self.period, self.spread / self.period
        last = place == self.period - 1
        return place == 0, last, np.float32(1 - self.spread + share if last else share)

    def kernel(self, rate: np.float32, step: int) -> Kernel:
        kept, length = np.float32(self.momentum), np.float32(self.period)
        first, last, weight = self._place(step)

        def update_block(x: Array, g: Array, out: Array, state: State) -> None:
            velocity, total = state["momentum"], state["period_sum"]
            np.multiply(g, rate, out=g)
            if first:
                np.copyto(total, g)
            else:
                np.add(total, g, out=total)
            if last:
                np.divide(total, length, out=out)
                np.multiply(velocity, kept, out=velocity)
                np.subtract(velocity, out, out=velocity)
            np.divide(g, length, out=g)
            np.multiply(velocity, kept, out=out)
            np.multiply(out, weight, out=out)
            np.subtract(out, g, out=out)
            np.add(x, out, out=out)

        return update_block

    def fused(self, rate: np.float32, step: int) -> Fused:
        first, last, weight = self._place(step)
        scalars = (
            *(rate, np.float32(self.momentum), np.float32(self.period)),
            *(np.float32(first), np.float32(last), weight),
        )
        return Fused(loops.delayed_nesterov, ("momentum", "period_sum"), scalars)

    def bounds(self, rate: float, step: int, g: float, b: Magnitudes) -> Bounds:
        total = b["period_sum"] + g * rate
        velocity = max(b["momentum"], b["momentum"] * self.momentum + total)
        # What the velocity weighs is at most 1.
        return {"x": b["x"] + velocity + g * rate, "momentum": velocity, "period_sum": total}, g
