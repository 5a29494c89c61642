"""Adagrad: ``a' = a + g*g``, ``x' = x - rate * g / sqrt(a' + epsilon)``.

Duchi, Hazan & Singer (JMLR 2011), the diagonal form; keras.optimizers.Adagrad,
where epsilon is inside the root. Bit-equal to Keras.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from psserver.optimizers import loops
from psserver.optimizers.blocks import Array, Kernel, State
from psserver.optimizers.magnitudes import LEAST, Bounds, Magnitudes, over, start_of
from psserver.optimizers.rule import Fused, decay_knob, decay_of, decayed
from pswire.knobs import number


@dataclass(frozen=True, slots=True)
class Adagrad:
    """Rates that shrink where gradients have been large."""

    learning_rate: ClassVar[float] = 0.001
    step_slot: ClassVar[str | None] = None
    per_worker: ClassVar[bool] = False
    slots: ClassVar[tuple[str, ...]] = ("accumulator",)

    initial_accumulator_value: float = number(0.1, "what the sum of squares starts from", at_least=0)
    epsilon: float = number(1e-7, "added to the sum of squares under the root", above=0)
    weight_decay: float = decay_knob()

    @property
    def initial(self) -> float:
        return self.initial_accumulator_value

    def kernel(self, rate: np.float32, step: int) -> Kernel:
        epsilon, decay = np.float32(self.epsilon), decay_of(self)

        def update_block(x: Array, g: Array, out: Array, state: State) -> None:
            total = state["accumulator"]
            np.multiply(g, g, out=out)
            np.add(total, out, out=total)
            np.add(total, epsilon, out=out)
            np.sqrt(out, out=out)
            np.multiply(g, rate, out=g)
            np.divide(g, out, out=g)
            np.subtract(decayed(x, rate, decay, out), g, out=out)

        return update_block

    def fused(self, rate: np.float32, step: int) -> Fused:
        return Fused(loops.adagrad, ("accumulator",), (rate, np.float32(self.epsilon), decay_of(self)))

    def bounds(self, rate: float, step: int, g: float, b: Magnitudes) -> Bounds:
        start, peak = start_of(self.weight_decay, rate, b["x"])
        total = b["accumulator"] + g * g
        x = start + over(g * rate, math.sqrt(self.epsilon) if self.epsilon > LEAST else 0.0)
        return {"x": x, "accumulator": total}, max(peak, g * rate)
