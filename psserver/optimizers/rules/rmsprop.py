"""RMSprop, optionally centered and with momentum.

    v' = rho * v + (1 - rho) * g*g
    a' = rho * a + (1 - rho) * g                  (centered)
    d = v' + epsilon, or v' - a'*a' + epsilon     (centered)
    i = rate * g / sqrt(d)
    x' = x - i, or m' = momentum * m + i and x' = x - m'

Tieleman & Hinton (2012, lecture 6.5); centered: Graves (2013), equations 38-45;
keras.optimizers.RMSprop, with epsilon under the root. Bit-equal to Keras,
with one exception: in the centered form, rounding can make d <= 0 for large
and nearly constant gradients, and Keras then yields NaN; here d becomes epsilon.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from psserver.optimizers import loops
from psserver.optimizers.blocks import Array, Kernel, State
from psserver.optimizers.magnitudes import LEAST, SMALLEST, Bounds, Magnitudes, start_of
from psserver.optimizers.rule import Fused, decay_knob, decay_of, decayed
from pswire.knobs import flag, number


@dataclass(frozen=True, slots=True)
class RMSprop:
    """Steps scaled by a running mean of squared gradients."""

    learning_rate: ClassVar[float] = 0.001
    initial: ClassVar[float] = 0.0
    per_worker: ClassVar[bool] = False

    rho: float = number(0.9, "decay of the running means", at_least=0, below=1)
    momentum: float = number(0.0, "part of the last step that is repeated", at_least=0, at_most=1)
    epsilon: float = number(1e-7, "added to the mean square under the root", above=0)
    weight_decay: float = decay_knob()
    centered: bool = flag(False, "divide by the standard deviation instead of the mean square")

    @property
    def slots(self) -> tuple[str, ...]:
        moving = ("momentum",) if self.momentum > 0 else ()
        means = ("average_gradient",) if self.centered else ()
        return ("velocity", *moving, *means)

    @property
    def step_slot(self) -> str | None:
        return "momentum" if self.momentum > 0 else None

    def kernel(self, rate: np.float32, step: int) -> Kernel:
        rho, gain, epsilon = np.float32(self.rho), np.float32(1 - self.rho), np.float32(self.epsilon)
        repeated, decay = np.float32(self.momentum), decay_of(self)

        def update_block(x: Array, g: Array, out: Array, state: State) -> None:
            square = state["velocity"]
            np.multiply(g, g, out=out)
            _blend(square, out, rho, gain)
            if "average_gradient" in state:
                mean = state["average_gradient"]
                np.copyto(out, g)
                _blend(mean, out, rho, gain)
                np.multiply(mean, mean, out=out)
                np.subtract(square, out, out=out)
                np.add(out, epsilon, out=out)
                np.copyto(out, epsilon, where=out <= 0)
            else:
                np.add(square, epsilon, out=out)
            np.sqrt(out, out=out)
            np.multiply(g, rate, out=g)
            np.divide(g, out, out=g)
            if "momentum" in state:
                velocity = state["momentum"]
                np.multiply(velocity, repeated, out=velocity)
                g = np.add(velocity, g, out=velocity)
            np.subtract(decayed(x, rate, decay, out), g, out=out)

        return update_block

    def fused(self, rate: np.float32, step: int) -> Fused:
        rho, gain, epsilon = np.float32(self.rho), np.float32(1 - self.rho), np.float32(self.epsilon)
        moving = "momentum" if self.momentum > 0 else None
        mean = "average_gradient" if self.centered else None
        scalars = (rate, rho, gain, epsilon, np.float32(self.momentum), decay_of(self))
        return Fused(loops.rmsprop, ("velocity", moving, mean), scalars)

    def bounds(self, rate: float, step: int, g: float, b: Magnitudes) -> Bounds:
        """Centered, the difference of two near numbers may cancel with epsilon down to the least number there is."""
        start, peak = start_of(self.weight_decay, rate, b["x"])
        found = {"velocity": b["velocity"] * self.rho + g * g * (1 - self.rho)}
        spread = self.epsilon if self.epsilon > LEAST else 0.0
        if self.centered:
            mean = found["average_gradient"] = b["average_gradient"] * self.rho + g * (1 - self.rho)
            peak, spread = max(peak, mean * mean + found["velocity"]), min(spread, SMALLEST)
        moved = g * rate / math.sqrt(spread) if spread else math.inf
        if self.momentum > 0:
            moved = found["momentum"] = b["momentum"] * self.momentum + moved
        return {**found, "x": start + moved}, max(peak, g * g, g * rate)


def _blend(mean: Array, fresh: Array, rho: np.float32, gain: np.float32) -> None:
    """``mean = rho * mean + gain * fresh``; `fresh` is overwritten."""
    np.multiply(mean, rho, out=mean)
    np.multiply(fresh, gain, out=fresh)
    np.add(mean, fresh, out=mean)
