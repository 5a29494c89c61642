"""Gradient descent with heavy-ball momentum.

``m' = momentum * m - rate * g``, ``x' = x + m'``. Polyak (1964);
keras.optimizers.SGD(momentum=...), where the learning rate is inside the
velocity: after a change of the rate, old gradients keep their old rate.
Bit-equal to Keras.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from psserver.optimizers import loops
from psserver.optimizers.blocks import Array, Kernel, State
from psserver.optimizers.magnitudes import Bounds, Magnitudes, start_of
from psserver.optimizers.rule import Fused, decay_knob, decay_of, decayed
from pswire.knobs import number


@dataclass(frozen=True, slots=True)
class Momentum:
    """A velocity that gradients push and friction slows."""

    learning_rate: ClassVar[float] = 0.01
    initial: ClassVar[float] = 0.0
    step_slot: ClassVar[str | None] = "momentum"
    per_worker: ClassVar[bool] = False
    slots: ClassVar[tuple[str, ...]] = ("momentum",)

    momentum: float = number(0.9, "part of the velocity that is kept per update", at_least=0, at_most=1)
    weight_decay: float = decay_knob()

    def kernel(self, rate: np.float32, step: int) -> Kernel:
        kept, decay = np.float32(self.momentum), decay_of(self)

        def update_block(x: Array, g: Array, out: Array, state: State) -> None:
            velocity = state["momentum"]
            np.multiply(g, rate, out=g)
            np.multiply(velocity, kept, out=velocity)
            np.subtract(velocity, g, out=velocity)
            np.add(decayed(x, rate, decay, out), velocity, out=out)

        return update_block

    def fused(self, rate: np.float32, step: int) -> Fused:
        return Fused(loops.momentum, ("momentum",), (rate, np.float32(self.momentum), decay_of(self)))

    def bounds(self, rate: float, step: int, g: float, b: Magnitudes) -> Bounds:
        start, peak = start_of(self.weight_decay, rate, b["x"])
        velocity = b["momentum"] * self.momentum + g * rate
        return {"x": start + velocity, "momentum": velocity}, max(peak, g)
