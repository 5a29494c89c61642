"""Yogi: Adam whose mean square changes by a fraction of the new square, so that step sizes change slowly.

    m' = m + (g - m) * (1 - beta_1)
    v' = v - sign(v - g*g) * g*g * (1 - beta_2)
    x' = x - rate * m' / (sqrt(v') + epsilon)

Zaheer et al. (NeurIPS 2018), Adaptive Methods for Nonconvex Optimization, algorithm 2. With a policy whose workers
contribute local steps it is the server's rule of FedYogi: Reddi et al. (ICLR 2021), algorithm 2. Keras has no Yogi.
TensorFlow Addons had one with these defaults; it corrects the rate as Adam does, which the papers do not.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from psserver.optimizers.formulas import Scalars, Value, mix, sign, sqrt
from psserver.optimizers.rule import Rule, Values, decay_knob
from pswire.knobs import number


@dataclass(frozen=True, slots=True)
class Yogi(Rule):
    """Adam whose step sizes change slowly: a small gradient changes the mean square little."""

    learning_rate: ClassVar[float] = 0.01
    slots: ClassVar[tuple[str, ...]] = ("momentum", "velocity")

    beta_1: float = number(0.9, "decay of the running mean of gradients", at_least=0, below=1)
    beta_2: float = number(
        0.999, "1 less the fraction of a squared gradient added or subtracted", at_least=0, below=1
    )
    epsilon: float = number(1e-3, "added to the root of the mean square", above=0)
    initial_accumulator_value: float = number(1e-6, "initial mean square", at_least=0)
    weight_decay: float = decay_knob()

    @property
    def initial(self) -> Mapping[str, float]:
        return {"velocity": self.initial_accumulator_value}

    def scalars(self, rate: np.float32, step: int) -> Scalars:
        return {
            "gain_1": np.float32(1 - self.beta_1),
            "gain_2": np.float32(1 - self.beta_2),
            "epsilon": np.float32(self.epsilon),
        }

    def step(self, x: Value, g: Value, s: Values) -> Values:
        mean = mix(s["momentum"], g, s["gain_1"])
        new = g * g
        square = s["velocity"] - sign(s["velocity"] - new) * new * s["gain_2"]
        return {
            "momentum": mean,
            "velocity": square,
            "x": x - mean * s["rate"] / (sqrt(square) + s["epsilon"]),
        }
