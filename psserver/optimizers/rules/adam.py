"""Adam, with the AMSGrad variant.

With t = 1, 2, ... and all scalars in float32::

    alpha = rate * sqrt(1 - beta_2**t) / (1 - beta_1**t)
    m' = m + (g - m) * (1 - beta_1)
    v' = v + (g*g - v) * (1 - beta_2)
    x' = x - m' * alpha / (sqrt(v') + epsilon)

amsgrad: ``h' = max(h, v')`` replaces v' in the last line. epsilon_outside: epsilon is multiplied by
sqrt(1 - beta_2**t), and so added to the corrected root, as in the paper's algorithm 1, torch.optim.Adam and optax.adam;
alpha is then computed in float64, as torch does.

Kingma & Ba (ICLR 2015), the reordered form before section 2.1, whose epsilon is "epsilon hat"; Reddi, Kale & Kumar
(ICLR 2018), algorithm 2; keras.optimizers.Adam. Slots are bit-equal to Keras. Powers are rounded from float64, so that
they are the same on every machine; TensorFlow's are up to one float32 ulp off, which makes alpha differ in its last
bits at a few t.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from psserver.optimizers.formulas import Scalars, Value, maximum, mix, sqrt
from psserver.optimizers.rule import Rule, Values, decay_knob
from pswire.knobs import flag, number


@dataclass(frozen=True, slots=True)
class Adam(Rule):
    """Steps scaled by running means of the gradient and of its square."""

    learning_rate: ClassVar[float] = 0.001

    beta_1: float = number(0.9, "decay of the running mean of gradients", at_least=0, below=1)
    beta_2: float = number(0.999, "decay of the running mean of squared gradients", at_least=0, below=1)
    epsilon: float = number(1e-7, "added to the root of the mean square", above=0)
    weight_decay: float = decay_knob()
    amsgrad: bool = flag(False, "divide by the largest mean square so far")
    epsilon_outside: bool = flag(False, "add epsilon to the bias-corrected root")

    @property
    def slots(self) -> tuple[str, ...]:
        hats = ("velocity_hat",) if self.amsgrad else ()
        return ("momentum", "velocity", *hats)

    def scalars(self, rate: np.float32, step: int) -> Scalars:
        alpha, epsilon = step_size(rate, self.beta_1, self.beta_2, step), self.epsilon
        if self.epsilon_outside:
            spread = math.sqrt(1 - math.pow(self.beta_2, step))
            alpha = np.float32(float(rate) * spread / (1 - math.pow(self.beta_1, step)))
            epsilon *= spread
        return {
            "alpha": alpha,
            "gain_1": np.float32(1 - self.beta_1),
            "gain_2": np.float32(1 - self.beta_2),
            "epsilon": np.float32(epsilon),
        }

    def step(self, x: Value, g: Value, s: Values) -> Values:
        mean = mix(s["momentum"], g, s["gain_1"])
        square = mix(s["velocity"], g * g, s["gain_2"])
        found = {"momentum": mean, "velocity": square}
        largest = square
        if self.amsgrad:
            largest = found["velocity_hat"] = maximum(s["velocity_hat"], square)
        return {**found, "x": x - mean * s["alpha"] / (sqrt(largest) + s["epsilon"])}


def step_size(rate: np.float32, beta_1: float, beta_2: float, step: int) -> np.float32:
    """Return Adam's alpha at t = `step`: the rate, corrected for means that start at zero."""
    root, rest = corrections(beta_1, beta_2, step)
    return np.float32(rate * root / rest)


def corrections(beta_1: float, beta_2: float, step: int) -> tuple[np.float32, np.float32]:
    """Return sqrt(1 - beta_2^t) and 1 - beta_1^t at t = `step`."""
    one = np.float32(1)
    power_1 = np.float32(math.pow(np.float32(beta_1), step))
    power_2 = np.float32(math.pow(np.float32(beta_2), step))
    return np.sqrt(one - power_2), one - power_1


def last_correction(beta_1: float, beta_2: float) -> float:
    """Return a step from which on both corrections are 1; infinite if there is none."""
    largest = max(float(np.float32(beta_1)), float(np.float32(beta_2)))
    if largest >= 1:
        return math.inf
    return 1 if largest <= 0 else max(1, math.ceil(26 * math.log(2) / -math.log(largest)))
