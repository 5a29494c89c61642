"""Gradient descent with Nesterov momentum.

``m' = momentum * m - rate * g``, ``x' = x + (momentum * m' - rate * g)``: the form of Sutskever et al. (ICML 2013,
section 3), with x standing for the look-ahead point at which the gradient is taken;
keras.optimizers.SGD(nesterov=True). Bit-equal to Keras. With `rate_outside`, as in torch.optim.SGD and optax.sgd:
``m' = momentum * m + g``, ``x' = x - rate * (momentum * m' + g)``.
"""

from dataclasses import dataclass

from psserver.optimizers.formulas import Value
from psserver.optimizers.rule import Values
from psserver.optimizers.rules.momentum import Momentum


@dataclass(frozen=True, slots=True)
class Nesterov(Momentum):
    """Momentum that looks one velocity ahead, with the knobs and slots of `Momentum`."""

    def step(self, x: Value, g: Value, s: Values) -> Values:
        if self.rate_outside:
            total = s["momentum"] * s["kept"] + g
            return {"x": x - (total * s["kept"] + g) * s["rate"], "momentum": total}
        step = g * s["rate"]
        velocity = s["momentum"] * s["kept"] - step
        return {"x": x + (velocity * s["kept"] - step), "momentum": velocity}
