"""Gradient descent with heavy-ball momentum.

``m' = momentum * m - rate * g``, ``x' = x + m'``. Polyak (1964); keras.optimizers.SGD(momentum=...), where the velocity
includes the learning rate: after a change of the rate, old gradients keep their old rate. Bit-equal to Keras. With
`rate_outside` the velocity does not include the rate, as in torch.optim.SGD and optax.sgd: ``m' = momentum * m + g``,
``x' = x - rate * m'``.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from psserver.optimizers.formulas import Scalars, Value
from psserver.optimizers.rule import Rule, Values, decay_knob
from pswire.knobs import flag, number


@dataclass(frozen=True, slots=True)
class Momentum(Rule):
    """A velocity that gradients push and friction slows."""

    learning_rate: ClassVar[float] = 0.01
    slots: ClassVar[tuple[str, ...]] = ("momentum",)

    momentum: float = number(0.9, "part of the velocity that is kept per update", at_least=0, at_most=1)
    weight_decay: float = decay_knob()
    rate_outside: bool = flag(False, "multiply the velocity by the rate instead of each gradient")

    @property
    def step_slot(self) -> str | None:
        return None if self.rate_outside else "momentum"

    def scalars(self, rate: np.float32, step: int) -> Scalars:
        return {"kept": np.float32(self.momentum)}

    def step(self, x: Value, g: Value, s: Values) -> Values:
        if self.rate_outside:
            total = s["momentum"] * s["kept"] + g
            return {"x": x - total * s["rate"], "momentum": total}
        velocity = s["momentum"] * s["kept"] - g * s["rate"]
        return {"x": x + velocity, "momentum": velocity}
