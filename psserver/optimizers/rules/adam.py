"""Adam, with the AMSGrad variant.

With t = 1, 2, ... and all scalars in float32::

    alpha = rate * sqrt(1 - beta_2**t) / (1 - beta_1**t)
    m' = m + (g - m) * (1 - beta_1)
    v' = v + (g*g - v) * (1 - beta_2)
    x' = x - m' * alpha / (sqrt(v') + epsilon)

amsgrad: ``h' = max(h, v')`` takes the place of v' in the last line.

Kingma & Ba (ICLR 2015), the reordered form before section 2.1, whose epsilon
is "epsilon hat"; Reddi, Kale & Kumar (ICLR 2018), algorithm 2;
keras.optimizers.Adam. Slots are bit-equal to Keras. The powers are rounded
from float64, so that they are the same on every machine; TensorFlow's are up
to one float32 ulp off, which makes alpha differ in its last bits at a few t.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from psserver.optimizers import loops
from psserver.optimizers.blocks import Array, Kernel, State
from psserver.optimizers.magnitudes import Bounds, Magnitudes, over, start_of
from psserver.optimizers.rule import Fused, decay_knob, decay_of, decayed
from pswire.knobs import flag, number


@dataclass(frozen=True, slots=True)
class Adam:
    """Steps scaled by running means of the gradient and of its square."""

    learning_rate: ClassVar[float] = 0.001
    initial: ClassVar[float] = 0.0
    step_slot: ClassVar[str | None] = None
    per_worker: ClassVar[bool] = False

    beta_1: float = number(0.9, "decay of the running mean of gradients", at_least=0, below=1)
    beta_2: float = number(0.999, "decay of the running mean of squared gradients", at_least=0, below=1)
    epsilon: float = number(1e-7, "added to the root of the mean square", above=0)
    weight_decay: float = decay_knob()
    amsgrad: bool = flag(False, "divide by the largest mean square so far")

    @property
    def slots(self) -> tuple[str, ...]:
        hats = ("velocity_hat",) if self.amsgrad else ()
        return ("momentum", "velocity", *hats)

    def kernel(self, rate: np.float32, step: int) -> Kernel:
        alpha = step_size(rate, self.beta_1, self.beta_2, step)
        gain_1, gain_2 = np.float32(1 - self.beta_1), np.float32(1 - self.beta_2)
        epsilon, decay = np.float32(self.epsilon), decay_of(self)

        def update_block(x: Array, g: Array, out: Array, state: State) -> None:
            scaled_step(g, out, state, alpha, gain_1, gain_2, epsilon)
            np.subtract(decayed(x, rate, decay, g), out, out=out)

        return update_block

    def fused(self, rate: np.float32, step: int) -> Fused:
        alpha = step_size(rate, self.beta_1, self.beta_2, step)
        gain_1, gain_2 = np.float32(1 - self.beta_1), np.float32(1 - self.beta_2)
        hat = "velocity_hat" if self.amsgrad else None
        decay = decay_of(self)
        scalars = (alpha, gain_1, gain_2, np.float32(self.epsilon), None if decay is None else rate, decay)
        return Fused(loops.adam, ("momentum", "velocity", hat), scalars)

    def bounds(self, rate: float, step: int, g: float, b: Magnitudes) -> Bounds:
        start, peak = start_of(self.weight_decay, rate, b["x"])
        alpha = float(step_size(np.float32(rate), self.beta_1, self.beta_2, step))
        found = {"momentum": max(b["momentum"], g), "velocity": max(b["velocity"], g * g)}
        if self.amsgrad:
            found["velocity_hat"] = max(b["velocity_hat"], found["velocity"])
        moved = found["momentum"] * alpha
        found["x"] = start + over(moved, self.epsilon)
        return found, max(peak, g * g + b["velocity"], g + b["momentum"], moved)


def step_size(rate: np.float32, beta_1: float, beta_2: float, step: int) -> np.float32:
    """Adam's alpha at t = `step`: the rate, corrected for means that started at zero."""
    one = np.float32(1)
    power_1 = np.float32(math.pow(np.float32(beta_1), step))
    power_2 = np.float32(math.pow(np.float32(beta_2), step))
    return np.float32(rate * np.sqrt(one - power_2) / (one - power_1))


def scaled_step(
    g: Array,
    out: Array,
    state: State,
    alpha: np.float32,
    gain_1: np.float32,
    gain_2: np.float32,
    epsilon: np.float32,
) -> None:
    """Advance the slots and leave what is to be subtracted from x in `out`; `g` is overwritten."""
    mean, square = state["momentum"], state["velocity"]
    np.subtract(g, mean, out=out)
    np.multiply(out, gain_1, out=out)
    np.add(mean, out, out=mean)
    np.multiply(g, g, out=g)
    np.subtract(g, square, out=g)
    np.multiply(g, gain_2, out=g)
    np.add(square, g, out=square)
    if "velocity_hat" in state:
        largest = state["velocity_hat"]
        square = np.maximum(largest, square, out=largest)
    np.sqrt(square, out=g)
    np.add(g, epsilon, out=g)
    np.multiply(mean, alpha, out=out)
    np.divide(out, g, out=out)
