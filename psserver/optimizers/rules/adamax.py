"""Adamax: Adam with the largest recent gradient in place of the mean square.

With t = 1, 2, ... and all scalars in float32::

    m' = m + (g - m) * (1 - beta_1)
    n' = max(beta_2 * n, |g|)
    x' = x - rate * m' / ((1 - beta_1**t) * (n' + epsilon))

Kingma & Ba (ICLR 2015), algorithm 2, to which Keras adds epsilon; keras.optimizers.Adamax. Slots are bit-equal to
Keras; the power is rounded from float64 (see `adam`). epsilon_inside: ``n' = max(beta_2 * n, |g| + epsilon)``, and n'
alone in the last line, as in torch.optim.Adamax and optax.adamax.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from psserver.optimizers.formulas import Scalars, Value, maximum, mix
from psserver.optimizers.rule import Rule, Values, decay_knob
from pswire.knobs import flag, number


@dataclass(frozen=True, slots=True)
class Adamax(Rule):
    """Steps scaled by the largest recent gradient."""

    learning_rate: ClassVar[float] = 0.001
    slots: ClassVar[tuple[str, ...]] = ("momentum", "norm")

    beta_1: float = number(0.9, "decay of the running mean of gradients", at_least=0, below=1)
    beta_2: float = number(0.999, "decay of the largest gradient", at_least=0, below=1)
    epsilon: float = number(1e-7, "added to the largest gradient", above=0)
    weight_decay: float = decay_knob()
    epsilon_inside: bool = flag(False, "add epsilon to each gradient instead of the largest")

    def scalars(self, rate: np.float32, step: int) -> Scalars:
        return {
            "gain": np.float32(1 - self.beta_1),
            "kept": np.float32(self.beta_2),
            "rest": np.float32(1) - np.float32(math.pow(np.float32(self.beta_1), step)),
            "epsilon": np.float32(self.epsilon),
        }

    def step(self, x: Value, g: Value, s: Values) -> Values:
        mean = mix(s["momentum"], g, s["gain"])
        size = abs(g) + s["epsilon"] if self.epsilon_inside else abs(g)
        largest = maximum(s["norm"] * s["kept"], size)
        divisor = largest if self.epsilon_inside else largest + s["epsilon"]
        moved = mean * s["rate"] / (divisor * s["rest"])
        return {"momentum": mean, "norm": largest, "x": x - moved}
