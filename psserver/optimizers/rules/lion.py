"""Lion: the sign of a mean of gradients, so that every weight moves by exactly the rate.

    x' = x - rate * sign(beta_1 * m + (1 - beta_1) * g)
    m' = beta_2 * m + (1 - beta_2) * g

Chen et al. (2023), Symbolic Discovery of Optimization Algorithms, program 1;
keras.optimizers.Lion. Bit-equal to Keras.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from psserver.optimizers.formulas import Scalars, Value, sign
from psserver.optimizers.rule import Rule, Values, decay_knob
from pswire.knobs import number


@dataclass(frozen=True, slots=True)
class Lion(Rule):
    """Steps of equal size, in the direction of the sign of a mean of gradients."""

    learning_rate: ClassVar[float] = 0.001
    slots: ClassVar[tuple[str, ...]] = ("momentum",)

    beta_1: float = number(0.9, "weight of the mean in the step's sign", at_least=0, at_most=1)
    beta_2: float = number(0.99, "decay of the running mean of gradients", at_least=0, at_most=1)
    weight_decay: float = decay_knob()

    def scalars(self, rate: np.float32, step: int) -> Scalars:
        one, kept_1, kept_2 = np.float32(1), np.float32(self.beta_1), np.float32(self.beta_2)
        return {"kept_1": kept_1, "gain_1": one - kept_1, "kept_2": kept_2, "gain_2": one - kept_2}

    def step(self, x: Value, g: Value, s: Values) -> Values:
        forward = s["momentum"] * s["kept_1"] + g * s["gain_1"]
        mean = s["momentum"] * s["kept_2"] + g * s["gain_2"]
        return {"x": x - sign(forward) * s["rate"], "momentum": mean}
