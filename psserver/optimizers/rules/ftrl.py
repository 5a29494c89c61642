"""FTRL-proximal: weights from the sum of all gradients so far; with an l1 strength many are exactly 0.

    n' = n + g*g
    z' = z + (g + 2 * shrinkage * x) - (sqrt(n') - sqrt(n)) / rate * x
    x' = (clip(z', -l1, l1) - z') / (sqrt(n') / rate + 2 * (l2 + beta / (2 * rate)))

McMahan et al. (KDD 2013), algorithm 1; keras.optimizers.Ftrl with its default learning_rate_power of -0.5, the
paper's, for which the power is a square root and the same on every machine. TensorFlow's power is up to one float32 ulp
off: n is bit-equal to Keras, z and x are within rounding. Other powers, which Keras has, are not supported.

Weights are a function of n and z alone, so their initial values do not count: as in Keras, a weight without any
gradient becomes 0 at the first update. At a rate of 0, where Keras divides by zero, weights and sums stay as they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from psserver.optimizers.formulas import ZERO, Scalars, Value, pick, sqrt
from psserver.optimizers.rule import Rule, Values, decay_knob
from pswire.knobs import number


@dataclass(frozen=True, slots=True)
class Ftrl(Rule):
    """Weights from the sums of all gradients, with l1 and l2 strengths; for sparse linear models."""

    learning_rate: ClassVar[float] = 0.001
    slots: ClassVar[tuple[str, ...]] = ("accumulator", "linear")

    initial_accumulator_value: float = number(0.1, "initial sum of squares", above=0)
    l1_regularization_strength: float = number(0.0, "the l1 strength", at_least=0)
    l2_regularization_strength: float = number(0.0, "the l2 strength", at_least=0)
    l2_shrinkage_regularization_strength: float = number(0.0, "l2 strength in the gradient", at_least=0)
    beta: float = number(0.0, "the paper's beta: added to the root of the sum of squares", at_least=0)
    weight_decay: float = decay_knob()

    @property
    def initial(self) -> Mapping[str, float]:
        return {"accumulator": self.initial_accumulator_value}

    def scalars(self, rate: np.float32, step: int) -> Scalars:
        """Return the scalars. `still` marks a rate of 0, by which nothing is divided."""
        still = np.float32(rate == 0)
        rate = np.float32(1) if still else rate
        l2 = np.float32(self.l2_regularization_strength)
        if self.beta:
            l2 = np.float32(l2 + np.float32(self.beta) / (np.float32(2) * rate))
        return {
            "rate": rate,
            "l1": np.float32(self.l1_regularization_strength),
            "l2": np.float32(2) * l2,
            "shrinkage": np.float32(2 * self.l2_shrinkage_regularization_strength),
            "still": still,
        }

    def step(self, x: Value, g: Value, s: Values) -> Values:
        before = sqrt(s["accumulator"])
        total = s["accumulator"] + g * g
        after = sqrt(total)
        sums = s["linear"] + (g + x * s["shrinkage"] - (after - before) / s["rate"] * x)
        clipped = pick(sums > s["l1"], s["l1"], sums)
        least = -s["l1"]
        clipped = pick(least > sums, least, clipped)
        found = {"linear": sums, "accumulator": total, "x": (clipped - sums) / (after / s["rate"] + s["l2"])}
        return {name: pick(s["still"] > ZERO, s[name], new) for name, new in found.items()}
