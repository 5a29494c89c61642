"""Gradient descent with Nesterov momentum.

``m' = momentum * m - rate * g``, ``x' = x + (momentum * m' - rate * g)``: the
form of Sutskever et al. (ICML 2013, section 3) with x standing for the point
ahead, where the gradient is taken; keras.optimizers.SGD(nesterov=True).
Bit-equal to Keras.
"""

from dataclasses import dataclass

import numpy as np

from psserver.optimizers import loops
from psserver.optimizers.blocks import Array, Kernel, State
from psserver.optimizers.magnitudes import Bounds, Magnitudes, start_of
from psserver.optimizers.rule import Fused, decay_of, decayed
from psserver.optimizers.rules.momentum import Momentum


@dataclass(frozen=True, slots=True)
class Nesterov(Momentum):
    """Momentum that looks one velocity ahead: knobs and slots are those of `Momentum`."""

    def kernel(self, rate: np.float32, step: int) -> Kernel:
        kept, decay = np.float32(self.momentum), decay_of(self)

        def update_block(x: Array, g: Array, out: Array, state: State) -> None:
            velocity = state["momentum"]
            np.multiply(g, rate, out=g)
            np.multiply(velocity, kept, out=velocity)
            np.subtract(velocity, g, out=velocity)
            np.multiply(velocity, kept, out=out)
            np.subtract(out, g, out=out)
            np.add(decayed(x, rate, decay, g), out, out=out)

        return update_block

    def fused(self, rate: np.float32, step: int) -> Fused:
        return Fused(loops.nesterov, ("momentum",), (rate, np.float32(self.momentum), decay_of(self)))

    def bounds(self, rate: float, step: int, g: float, b: Magnitudes) -> Bounds:
        start, peak = start_of(self.weight_decay, rate, b["x"])
        velocity = b["momentum"] * self.momentum + g * rate
        ahead = velocity * self.momentum + g * rate
        return {"x": start + ahead, "momentum": velocity}, max(peak, g)
