"""Stochastic gradient descent: ``x' = x - rate * g``.

Robbins & Monro (1951); keras.optimizers.SGD without momentum. Bit-equal to Keras.
"""

from dataclasses import dataclass
from typing import ClassVar

from psserver.optimizers.formulas import Value
from psserver.optimizers.rule import Rule, Values, decay_knob


@dataclass(frozen=True, slots=True)
class SGD(Rule):
    """Plain gradient descent, without slots."""

    learning_rate: ClassVar[float] = 0.01
    slots: ClassVar[tuple[str, ...]] = ()

    weight_decay: float = decay_knob()

    def step(self, x: Value, g: Value, s: Values) -> Values:
        return {"x": x - g * s["rate"]}
