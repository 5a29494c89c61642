"""Gradient descent with Nesterov momentum.

``m' = momentum * m - rate * g``, ``x' = x + (momentum * m' - rate * g)``: the
form of Sutskever et al. (ICML 2013, section 3) with x standing for the point
ahead, where the gradient is taken; keras.optimizers.SGD(nesterov=True).
Bit-equal to Keras.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from psserver.optimizers import loops
from psserver.optimizers.blocks import Array, Kernel, State
from psserver.optimizers.rule import Fused, decay_knob, decay_of, decayed
from pswire.knobs import number


@dataclass(frozen=True, slots=True)
class Nesterov:
    """Momentum that looks one velocity ahead."""

    learning_rate: ClassVar[float] = 0.01
    initial: ClassVar[float] = 0.0
    step_slot: ClassVar[str | None] = "momentum"
    per_worker: ClassVar[bool] = False
    slots: ClassVar[tuple[str, ...]] = ("momentum",)

    momentum: float = number(0.9, "part of the velocity that is kept per update", at_least=0, at_most=1)
    weight_decay: float = decay_knob()

    def kernel(self, rate: np.float32, step: int) -> Kernel:
        kept, decay = np.float32(self.momentum), decay_of(self)

        def look_ahead(x: Array, g: Array, out: Array, state: State) -> None:
            velocity = state["momentum"]
            np.multiply(g, rate, out=g)
            np.multiply(velocity, kept, out=velocity)
            np.subtract(velocity, g, out=velocity)
            np.multiply(velocity, kept, out=out)
            np.subtract(out, g, out=out)
            np.add(decayed(x, rate, decay, g), out, out=out)

        return look_ahead

    def fused(self, rate: np.float32, step: int) -> Fused:
        return Fused(loops.nesterov, ("momentum",), (rate, np.float32(self.momentum), decay_of(self)))
