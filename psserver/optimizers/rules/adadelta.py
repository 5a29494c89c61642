"""Adadelta: steps in the unit of the weights, from running means of squared gradients and squared steps.

    a' = rho * a + (1 - rho) * g*g
    d  = -(sqrt(s + epsilon) * g / sqrt(a' + epsilon))
    s' = rho * s + (1 - rho) * d*d
    x' = x + rate * d

Zeiler (2012), algorithm 1, where the rate is 1; keras.optimizers.Adadelta. Bit-equal to Keras.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from psserver.optimizers.formulas import Scalars, Value, sqrt
from psserver.optimizers.rule import Rule, Values, decay_knob
from pswire.knobs import number


@dataclass(frozen=True, slots=True)
class Adadelta(Rule):
    """Steps in proportion to recent steps, divided by recent gradients."""

    learning_rate: ClassVar[float] = 0.001
    slots: ClassVar[tuple[str, ...]] = ("accumulated_grad", "accumulated_delta_var")

    rho: float = number(0.95, "decay of the running means", at_least=0, below=1)
    epsilon: float = number(1e-7, "added to the means under the roots", above=0)
    weight_decay: float = decay_knob()

    def scalars(self, rate: np.float32, step: int) -> Scalars:
        rho, gain = np.float32(self.rho), np.float32(1 - self.rho)
        return {"rho": rho, "gain": gain, "epsilon": np.float32(self.epsilon)}

    def step(self, x: Value, g: Value, s: Values) -> Values:
        squares, steps = s["accumulated_grad"], s["accumulated_delta_var"]
        square = squares * s["rho"] + g * g * s["gain"]
        step = -(sqrt(steps + s["epsilon"]) * g / sqrt(square + s["epsilon"]))
        mean = steps * s["rho"] + step * step * s["gain"]
        return {"accumulated_grad": square, "accumulated_delta_var": mean, "x": x + step * s["rate"]}
