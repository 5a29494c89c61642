"""Nadam: Adam with Nesterov's look-ahead in the mean of gradients.

With t = 1, 2, ..., u_t = beta_1 * (1 - 0.96**t / 2) and p_t = u_1 * ... * u_t, all in float32::

    m' = m + (g - m) * (1 - beta_1)
    v' = v + (g*g - v) * (1 - beta_2)
    h  = u_(t+1) * m' / (1 - p_t * u_(t+1)) + (1 - u_t) * g / (1 - p_t)
    x' = x - h * rate / (sqrt(v' / (1 - beta_2**t)) + epsilon)

Dozat (ICLR workshop 2016), algorithm 2; keras.optimizers.Nadam. Slots are
bit-equal to Keras; powers are rounded from float64 (see `adam`). Keras keeps
p_t in a variable, here it is a function of t: a list that is as long as p_t
matters in float32, some 18 / (1 - beta_1) numbers.
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np

from psserver.optimizers.backend import loop
from psserver.optimizers.blocks import LARGEST, Array, Kernel, State
from psserver.optimizers.magnitudes import Bounds, Magnitudes, over, start_of
from psserver.optimizers.rule import Fused, decay_knob, decay_of, decayed
from pswire.knobs import number

Scalar = np.float32
# Below this, 1 - p is 1 in float32.
NEGLIGIBLE = np.float32(2**-26)


@dataclass(frozen=True, slots=True)
class Nadam:
    """Adam that looks one mean gradient ahead."""

    learning_rate: ClassVar[float] = 0.001
    initial: ClassVar[float] = 0.0
    step_slot: ClassVar[str | None] = None
    per_worker: ClassVar[bool] = False
    slots: ClassVar[tuple[str, ...]] = ("momentum", "velocity")

    beta_1: float = number(0.9, "decay of the running mean of gradients", at_least=0, below=1)
    beta_2: float = number(0.999, "decay of the running mean of squared gradients", at_least=0, below=1)
    epsilon: float = number(1e-7, "added to the root of the mean square", above=0)
    weight_decay: float = decay_knob()

    def scalars(self, rate: Scalar, step: int) -> tuple[Scalar, ...]:
        one = np.float32(1)
        now, ahead = _schedule(self.beta_1, step), _schedule(self.beta_1, step + 1)
        product = _product(self.beta_1, step)
        return (
            *(rate, one - np.float32(self.beta_1), one - np.float32(self.beta_2)),
            *(ahead, one - product * ahead, one - now, one - product),
            *(one - np.float32(math.pow(np.float32(self.beta_2), step)), np.float32(self.epsilon)),
        )

    def kernel(self, rate: np.float32, step: int) -> Kernel:
        rate, gain_1, gain_2, ahead, rest_ahead, fresh, rest, spread, epsilon = self.scalars(rate, step)
        decay = decay_of(self)

        def update_block(x: Array, g: Array, out: Array, state: State) -> None:
            mean, square = state["momentum"], state["velocity"]
            np.subtract(g, mean, out=out)
            np.multiply(out, gain_1, out=out)
            np.add(mean, out, out=mean)
            np.multiply(g, g, out=out)
            np.subtract(out, square, out=out)
            np.multiply(out, gain_2, out=out)
            np.add(square, out, out=square)
            np.multiply(mean, ahead, out=out)
            np.divide(out, rest_ahead, out=out)
            np.multiply(g, fresh, out=g)
            np.divide(g, rest, out=g)
            np.add(out, g, out=out)
            np.multiply(out, rate, out=out)
            np.divide(square, spread, out=g)
            np.sqrt(g, out=g)
            np.add(g, epsilon, out=g)
            np.divide(out, g, out=out)
            np.subtract(decayed(x, rate, decay, g), out, out=out)

        return update_block

    def fused(self, rate: np.float32, step: int) -> Fused:
        return Fused(nadam, ("momentum", "velocity"), (*self.scalars(rate, step), decay_of(self)))

    def bounds(self, rate: float, step: int, g: float, b: Magnitudes) -> Bounds:
        start, peak = start_of(self.weight_decay, rate, b["x"])
        scalars = [float(scalar) for scalar in self.scalars(np.float32(rate), step)]
        ahead, rest_ahead, fresh, rest, spread, epsilon = scalars[3:]
        mean, square = max(b["momentum"], g), max(b["velocity"], g * g)
        moved = over(mean * ahead, rest_ahead) + over(g * fresh, rest)
        found = {"momentum": mean, "velocity": square, "x": start + over(moved * rate, epsilon)}
        return found, max(peak, g * g + b["velocity"], g + b["momentum"], moved, over(square, spread))


def _schedule(beta_1: float, step: int) -> Scalar:
    """u_t."""
    power = np.float32(math.pow(np.float32(0.96), step))
    return np.float32(np.float32(beta_1) * (np.float32(1) - np.float32(0.5) * power))


@cache
def _products(beta_1: float) -> list[Scalar]:
    """p_0, p_1, ... as far as they were asked for and are not negligible."""
    return [np.float32(1)]


def _product(beta_1: float, step: int) -> Scalar:
    """p_t, multiplied up as Keras does: (p * beta_1) * (1 - 0.96**t / 2)."""
    known = _products(beta_1)
    while len(known) <= step and known[-1] >= NEGLIGIBLE:
        power = np.float32(math.pow(np.float32(0.96), len(known)))
        factor = np.float32(1) - np.float32(0.5) * power
        known.append(np.float32(np.float32(known[-1] * np.float32(beta_1)) * factor))
    return known[step] if step < len(known) else np.float32(0)


@loop("rrwwwfffffffffffff")
def nadam(
    x: Array,
    g: Array,
    out: Array,
    momentum: Array,
    velocity: Array,
    rate: Scalar,
    gain_1: Scalar,
    gain_2: Scalar,
    ahead: Scalar,
    rest_ahead: Scalar,
    fresh: Scalar,
    rest: Scalar,
    spread: Scalar,
    epsilon: Scalar,
    decay: Scalar | None,
    factor: Scalar,
    scale: Scalar,
    tiny: Scalar,
) -> bool:
    good = True
    for i in range(x.size):
        gradient = g[i] * factor * scale
        mean = momentum[i] + (gradient - momentum[i]) * gain_1
        square = velocity[i] + (gradient * gradient - velocity[i]) * gain_2
        start = x[i]
        if decay is not None:
            start = x[i] - x[i] * decay * rate
        step = (mean * ahead / rest_ahead + gradient * fresh / rest) * rate
        out[i] = start - step / (np.sqrt(square / spread) + epsilon)
        good = good & (abs(out[i]) <= LARGEST)
        momentum[i] = np.float32(0) if abs(mean) < tiny else mean
        good = good & (abs(mean) <= LARGEST)
        velocity[i] = np.float32(0) if abs(square) < tiny else square
        good = good & (abs(square) <= LARGEST)
    return good
