"""Stochastic gradient descent: ``x' = x - rate * g``.

Robbins & Monro (1951); keras.optimizers.SGD without momentum. Bit-equal to Keras.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from psserver.optimizers import loops
from psserver.optimizers.blocks import Array, Kernel, State
from psserver.optimizers.magnitudes import Bounds, Magnitudes, start_of
from psserver.optimizers.rule import Fused, decay_knob, decay_of, decayed


@dataclass(frozen=True, slots=True)
class SGD:
    """Plain gradient descent; keeps nothing."""

    learning_rate: ClassVar[float] = 0.01
    initial: ClassVar[float] = 0.0
    step_slot: ClassVar[str | None] = None
    per_worker: ClassVar[bool] = False
    slots: ClassVar[tuple[str, ...]] = ()

    weight_decay: float = decay_knob()

    def kernel(self, rate: np.float32, step: int) -> Kernel:
        decay = decay_of(self)

        def update_block(x: Array, g: Array, out: Array, state: State) -> None:
            np.multiply(g, rate, out=g)
            np.subtract(decayed(x, rate, decay, out), g, out=out)

        return update_block

    def fused(self, rate: np.float32, step: int) -> Fused:
        return Fused(loops.sgd, (), (rate, decay_of(self)))

    def bounds(self, rate: float, step: int, g: float, b: Magnitudes) -> Bounds:
        start, peak = start_of(self.weight_decay, rate, b["x"])
        return {"x": start + g * rate}, max(peak, g)
