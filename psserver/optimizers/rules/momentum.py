"""Gradient descent with heavy-ball momentum.

``m' = momentum * m - rate * g``, ``x' = x + m'``. Polyak (1964);
keras.optimizers.SGD(momentum=...), where the learning rate is inside the
velocity: after a change of the rate, old gradients keep their old rate.
Bit-equal to Keras.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from psserver.optimizers.formulas import Scalars, Value
from psserver.optimizers.rule import Rule, Values, decay_knob
from pswire.knobs import number


@dataclass(frozen=True, slots=True)
class Momentum(Rule):
    """A velocity that gradients push and friction slows."""

    learning_rate: ClassVar[float] = 0.01
    step_slot: ClassVar[str | None] = "momentum"
    slots: ClassVar[tuple[str, ...]] = ("momentum",)

    momentum: float = number(0.9, "part of the velocity that is kept per update", at_least=0, at_most=1)
    weight_decay: float = decay_knob()

    def scalars(self, rate: np.float32, step: int) -> Scalars:
        return {"kept": np.float32(self.momentum)}

    def step(self, x: Value, g: Value, s: Values) -> Values:
        velocity = s["momentum"] * s["kept"] - g * s["rate"]
        return {"x": x + velocity, "momentum": velocity}
