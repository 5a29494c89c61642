"""Nadam: Adam with Nesterov's look-ahead in the mean of gradients.

With t = 1, 2, ..., u_t = beta_1 * (1 - 0.96**t / 2) and p_t = u_1 * ... * u_t, all in float32::

    m' = m + (g - m) * (1 - beta_1)
    v' = v + (g*g - v) * (1 - beta_2)
    h  = u_(t+1) * m' / (1 - p_t * u_(t+1)) + (1 - u_t) * g / (1 - p_t)
    x' = x - h * rate / (sqrt(v' / (1 - beta_2**t)) + epsilon)

Dozat (ICLR workshop 2016), algorithm 2; keras.optimizers.Nadam. Slots are bit-equal to Keras; powers are rounded from
float64 (see `adam`). Keras keeps p_t in a variable; here it is a function of t, from a list that grows until p_t no
longer matters in float32, after about 18 / (1 - beta_1) numbers. momentum_decay: u_t uses 0.96**(t * momentum_decay),
as in torch.optim.NAdam, whose default is 0.004.
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np

from psserver.optimizers.formulas import Scalars, Value, mix, sqrt
from psserver.optimizers.rule import Rule, Values, decay_knob
from pswire.knobs import number

Scalar = np.float32
# Below this, 1 - p is 1 in float32.
NEGLIGIBLE = np.float32(2**-26)


@dataclass(frozen=True, slots=True)
class Nadam(Rule):
    """Adam that looks one mean gradient ahead."""

    learning_rate: ClassVar[float] = 0.001
    slots: ClassVar[tuple[str, ...]] = ("momentum", "velocity")

    beta_1: float = number(0.9, "decay of the running mean of gradients", at_least=0, below=1)
    beta_2: float = number(0.999, "decay of the running mean of squared gradients", at_least=0, below=1)
    epsilon: float = number(1e-7, "added to the root of the mean square", above=0)
    weight_decay: float = decay_knob()
    momentum_decay: float = number(
        1.0, "how fast u_t approaches beta_1: u_t uses 0.96**(t * momentum_decay)", above=0
    )

    def scalars(self, rate: np.float32, step: int) -> Scalars:
        one = np.float32(1)
        now, ahead = (_schedule(self.beta_1, self.momentum_decay, each) for each in (step, step + 1))
        product = _product(self.beta_1, self.momentum_decay, step)
        return {
            "gain_1": one - np.float32(self.beta_1),
            "gain_2": one - np.float32(self.beta_2),
            "ahead": ahead,
            "rest_ahead": one - product * ahead,
            "fresh": one - now,
            "rest": one - product,
            "spread": one - np.float32(math.pow(np.float32(self.beta_2), step)),
            "epsilon": np.float32(self.epsilon),
        }

    def step(self, x: Value, g: Value, s: Values) -> Values:
        mean = mix(s["momentum"], g, s["gain_1"])
        square = mix(s["velocity"], g * g, s["gain_2"])
        ahead = (mean * s["ahead"] / s["rest_ahead"] + g * s["fresh"] / s["rest"]) * s["rate"]
        moved = ahead / (sqrt(square / s["spread"]) + s["epsilon"])
        return {"momentum": mean, "velocity": square, "x": x - moved}


def _schedule(beta_1: float, decay: float, step: int) -> Scalar:
    """Return u_t."""
    power = np.float32(math.pow(np.float32(0.96), step * decay))
    return np.float32(np.float32(beta_1) * (np.float32(1) - np.float32(0.5) * power))


@cache
def _products(beta_1: float, decay: float) -> list[Scalar]:
    """Return the list p_0, p_1, ..., which `_product` extends on demand until p is negligible."""
    return [np.float32(1)]


def _product(beta_1: float, decay: float, step: int) -> Scalar:
    """Return p_t, multiplied as Keras does: (p * beta_1) * (1 - 0.96**t / 2)."""
    known = _products(beta_1, decay)
    while len(known) <= step and known[-1] >= NEGLIGIBLE:
        power = np.float32(math.pow(np.float32(0.96), len(known) * decay))
        factor = np.float32(1) - np.float32(0.5) * power
        known.append(np.float32(np.float32(known[-1] * np.float32(beta_1)) * factor))
    return known[step] if step < len(known) else np.float32(0)
