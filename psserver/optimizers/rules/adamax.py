"""Adamax: Adam with the largest recent gradient in place of the mean square.

With t = 1, 2, ... and all scalars in float32::

    m' = m + (g - m) * (1 - beta_1)
    n' = max(beta_2 * n, |g|)
    x' = x - rate * m' / ((1 - beta_1**t) * (n' + epsilon))

Kingma & Ba (ICLR 2015), algorithm 2, to which Keras adds epsilon;
keras.optimizers.Adamax. Slots are bit-equal to Keras; the power is rounded
from float64 (see `adam`).
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from psserver.optimizers.backend import loop
from psserver.optimizers.blocks import LARGEST, Array, Kernel, State
from psserver.optimizers.magnitudes import Bounds, Magnitudes, over, start_of
from psserver.optimizers.rule import Fused, decay_knob, decay_of, decayed
from pswire.knobs import number

Scalar = np.float32


@dataclass(frozen=True, slots=True)
class Adamax:
    """Steps scaled by the largest recent gradient."""

    learning_rate: ClassVar[float] = 0.001
    initial: ClassVar[float] = 0.0
    step_slot: ClassVar[str | None] = None
    per_worker: ClassVar[bool] = False
    slots: ClassVar[tuple[str, ...]] = ("momentum", "norm")

    beta_1: float = number(0.9, "decay of the running mean of gradients", at_least=0, below=1)
    beta_2: float = number(0.999, "decay of the largest gradient", at_least=0, below=1)
    epsilon: float = number(1e-7, "added to the largest gradient", above=0)
    weight_decay: float = decay_knob()

    def _scalars(self, rate: Scalar, step: int) -> tuple[Scalar, ...]:
        rest = np.float32(1) - np.float32(math.pow(np.float32(self.beta_1), step))
        gain, kept = np.float32(1 - self.beta_1), np.float32(self.beta_2)
        return rate, gain, kept, np.float32(rest), np.float32(self.epsilon)

    def kernel(self, rate: np.float32, step: int) -> Kernel:
        rate, gain, kept, rest, epsilon = self._scalars(rate, step)
        decay = decay_of(self)

        def update_block(x: Array, g: Array, out: Array, state: State) -> None:
            mean, largest = state["momentum"], state["norm"]
            np.subtract(g, mean, out=out)
            np.multiply(out, gain, out=out)
            np.add(mean, out, out=mean)
            np.abs(g, out=g)
            np.multiply(largest, kept, out=largest)
            np.maximum(largest, g, out=largest)
            np.multiply(mean, rate, out=out)
            np.add(largest, epsilon, out=g)
            np.multiply(g, rest, out=g)
            np.divide(out, g, out=out)
            np.subtract(decayed(x, rate, decay, g), out, out=out)

        return update_block

    def fused(self, rate: np.float32, step: int) -> Fused:
        return Fused(adamax, ("momentum", "norm"), (*self._scalars(rate, step), decay_of(self)))

    def bounds(self, rate: float, step: int, g: float, b: Magnitudes) -> Bounds:
        start, peak = start_of(self.weight_decay, rate, b["x"])
        mean, norm = max(b["momentum"], g), max(b["norm"], g)
        # As the rule has it: 1 - beta_1 ** step, rounded.
        rest = 1.0 - float(np.float32(math.pow(np.float32(self.beta_1), step)))
        found = {"momentum": mean, "norm": norm, "x": start + over(mean * rate, self.epsilon * rest)}
        return found, max(peak, g + b["momentum"], mean * rate)


@loop("rrwwwfffffffff")
def adamax(
    x: Array,
    g: Array,
    out: Array,
    momentum: Array,
    norm: Array,
    rate: Scalar,
    gain: Scalar,
    kept: Scalar,
    rest: Scalar,
    epsilon: Scalar,
    decay: Scalar | None,
    factor: Scalar,
    scale: Scalar,
    tiny: Scalar,
) -> bool:
    good = True
    for i in range(x.size):
        gradient = g[i] * factor * scale
        mean = momentum[i] + (gradient - momentum[i]) * gain
        largest = np.maximum(norm[i] * kept, abs(gradient))
        start = x[i]
        if decay is not None:
            start = x[i] - x[i] * decay * rate
        out[i] = start - mean * rate / ((largest + epsilon) * rest)
        good = good & (abs(out[i]) <= LARGEST)
        momentum[i] = np.float32(0) if abs(mean) < tiny else mean
        good = good & (abs(mean) <= LARGEST)
        norm[i] = np.float32(0) if abs(largest) < tiny else largest
        good = good & (abs(largest) <= LARGEST)
    return good
