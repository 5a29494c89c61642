"""RMSprop, optionally centered and with momentum.

    v' = rho * v + (1 - rho) * g*g
    a' = rho * a + (1 - rho) * g                  (centered)
    d = v' + epsilon, or v' - a'*a' + epsilon     (centered)
    i = rate * g / sqrt(d)
    x' = x - i, or m' = momentum * m + i and x' = x - m'

epsilon_outside: ``sqrt(d without epsilon) + epsilon``. rate_outside: the rate is not in m, but multiplies it. Both as
in torch.optim.RMSprop.

Tieleman & Hinton (2012, lecture 6.5); centered: Graves (2013), equations 38-45; keras.optimizers.RMSprop, with epsilon
under the root. Bit-equal to Keras, with one exception: in the centered form, rounding can make d <= 0 for large and
nearly constant gradients. Keras (and torch, for d < 0) then yields NaN; here d becomes epsilon.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from psserver.optimizers.formulas import ZERO, Scalars, Value, pick, root, sqrt
from psserver.optimizers.rule import Rule, Values, decay_knob
from pswire.knobs import flag, number


@dataclass(frozen=True, slots=True)
class RMSprop(Rule):
    """Steps scaled by a running mean of squared gradients."""

    learning_rate: ClassVar[float] = 0.001

    rho: float = number(0.9, "decay of the running means", at_least=0, below=1)
    momentum: float = number(0.0, "part of the last step that is repeated", at_least=0, at_most=1)
    epsilon: float = number(1e-7, "added to the mean square under the root", above=0)
    weight_decay: float = decay_knob()
    centered: bool = flag(False, "divide by the standard deviation instead of the mean square")
    epsilon_outside: bool = flag(False, "add epsilon to the root instead of under it")
    rate_outside: bool = flag(False, "multiply the momentum by the rate instead of each step")

    @property
    def slots(self) -> tuple[str, ...]:
        moving = ("momentum",) if self.momentum > 0 else ()
        means = ("average_gradient",) if self.centered else ()
        return ("velocity", *moving, *means)

    @property
    def step_slot(self) -> str | None:
        return "momentum" if self.momentum > 0 and not self.rate_outside else None

    def scalars(self, rate: np.float32, step: int) -> Scalars:
        return {
            "rho": np.float32(self.rho),
            "gain": np.float32(1 - self.rho),
            "epsilon": np.float32(self.epsilon),
            "repeated": np.float32(self.momentum),
        }

    def step(self, x: Value, g: Value, s: Values) -> Values:
        found = {"velocity": s["velocity"] * s["rho"] + g * g * s["gain"]}
        divisor = root(found["velocity"], s["epsilon"], outside=self.epsilon_outside)
        if self.centered:
            mean = found["average_gradient"] = s["average_gradient"] * s["rho"] + g * s["gain"]
            spread = found["velocity"] - mean * mean
            if self.epsilon_outside:
                divisor = sqrt(pick(spread <= ZERO, ZERO, spread)) + s["epsilon"]
            else:
                spread = spread + s["epsilon"]
                divisor = sqrt(pick(spread <= ZERO, s["epsilon"], spread))
        if self.momentum > 0 and self.rate_outside:
            total = found["momentum"] = s["momentum"] * s["repeated"] + g / divisor
            return {**found, "x": x - total * s["rate"]}
        step = g * s["rate"] / divisor
        if self.momentum > 0:
            step = found["momentum"] = s["momentum"] * s["repeated"] + step
        return {**found, "x": x - step}
