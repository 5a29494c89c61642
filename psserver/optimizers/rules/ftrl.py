"""FTRL-proximal: weights from the sum of all gradients so far; with an l1 strength many are exactly 0.

    n' = n + g*g
    z' = z + (g + 2 * shrinkage * x) - (sqrt(n') - sqrt(n)) / rate * x
    x' = (clip(z', -l1, l1) - z') / (sqrt(n') / rate + 2 * (l2 + beta / (2 * rate)))

McMahan et al. (KDD 2013), algorithm 1; keras.optimizers.Ftrl with its
learning_rate_power of -0.5, the paper's, for which the power is a square root
and so the same on every machine (TensorFlow's power is up to one float32 ulp
off: n is bit-equal to Keras, z and x are within rounding). Keras knows other powers; we do not.

The weights are a function of n and z alone, so that the values they start
from have no weight of their own: as in Keras, a weight without any gradient
becomes 0 at the first update. At a rate of 0, where Keras divides by zero,
weights and sums stay as they are.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from psserver.optimizers.backend import loop
from psserver.optimizers.blocks import LARGEST, Array, Kernel, State
from psserver.optimizers.magnitudes import LEAST, Bounds, Magnitudes, over, start_of
from psserver.optimizers.rule import Fused, decay_knob, decay_of, decayed
from pswire.knobs import number

Scalar = np.float32


@dataclass(frozen=True, slots=True)
class Ftrl:
    """Weights from the sums of all gradients, with l1 and l2 strengths; for sparse linear models."""

    learning_rate: ClassVar[float] = 0.001
    step_slot: ClassVar[str | None] = None
    per_worker: ClassVar[bool] = False
    slots: ClassVar[tuple[str, ...]] = ("accumulator", "linear")

    initial_accumulator_value: float = number(0.1, "what the sum of squares starts from", above=0)
    l1_regularization_strength: float = number(0.0, "the l1 strength", at_least=0)
    l2_regularization_strength: float = number(0.0, "the l2 strength", at_least=0)
    l2_shrinkage_regularization_strength: float = number(0.0, "l2 strength in the gradient", at_least=0)
    beta: float = number(0.0, "the paper's beta: added to the root of the sum of squares", at_least=0)
    weight_decay: float = decay_knob()

    @property
    def initial(self) -> Mapping[str, float]:
        return {"accumulator": self.initial_accumulator_value}

    def _scalars(self, rate: Scalar) -> tuple[Scalar, ...]:
        """With a rate of 0 nothing is divided by it: the last one says so."""
        still = np.float32(rate == 0)
        rate = np.float32(1) if still else rate
        l2 = np.float32(self.l2_regularization_strength)
        if self.beta:
            l2 = np.float32(l2 + np.float32(self.beta) / (np.float32(2) * rate))
        shrinkage = np.float32(2 * self.l2_shrinkage_regularization_strength)
        return rate, np.float32(self.l1_regularization_strength), np.float32(2) * l2, shrinkage, still

    def kernel(self, rate: np.float32, step: int) -> Kernel:
        rate, l1, l2, shrinkage, still = self._scalars(rate)
        decay = decay_of(self)

        def update_block(x: Array, g: Array, out: Array, state: State) -> None:
            if still:
                np.copyto(out, x)
                return
            squares, linear = state["accumulator"], state["linear"]
            start = decayed(x, rate, decay, np.empty_like(x) if decay is not None else out)
            before = np.sqrt(squares)
            np.multiply(g, g, out=out)
            np.add(squares, out, out=squares)
            after = np.sqrt(squares)
            np.subtract(after, before, out=before)
            np.divide(before, rate, out=before)
            np.multiply(before, start, out=before)
            np.multiply(start, shrinkage, out=out)
            np.add(g, out, out=out)
            np.subtract(out, before, out=out)
            np.add(linear, out, out=linear)
            np.divide(after, rate, out=after)
            np.add(after, l2, out=after)
            np.copyto(out, linear)
            np.copyto(out, l1, where=out > l1)
            np.copyto(out, -l1, where=out < -l1)
            np.subtract(out, linear, out=out)
            np.divide(out, after, out=out)

        return update_block

    def fused(self, rate: np.float32, step: int) -> Fused:
        return Fused(ftrl, ("accumulator", "linear"), (*self._scalars(rate), decay_of(self)))

    def bounds(self, rate: float, step: int, g: float, b: Magnitudes) -> Bounds:
        """The sum of squares never falls below what it starts from. Its root grows by |g| at most, and by rounding."""
        if rate == 0:
            return dict(b), 0.0
        start, peak = start_of(self.weight_decay, rate, b["x"])
        total = b["accumulator"] + g * g
        root = math.sqrt(total)
        pull = over(g + root * 2.0**-20, rate)
        shrinkage = 2 * self.l2_shrinkage_regularization_strength
        linear = b["linear"] + g + start * (shrinkage + pull)
        clipped = linear + self.l1_regularization_strength
        least = self.initial_accumulator_value
        divisor = over(math.sqrt(least), rate) if least > LEAST else 0.0
        on_the_way = (
            peak,
            pull,
            over(root, rate),
            clipped,
            self.beta / (2 * rate),
            self.l2_regularization_strength,
        )
        return {"accumulator": total, "linear": linear, "x": over(clipped, divisor)}, max(*on_the_way)


@loop("rrwwwfffffffff")
def ftrl(
    x: Array,
    g: Array,
    out: Array,
    accumulator: Array,
    linear: Array,
    rate: Scalar,
    l1: Scalar,
    l2: Scalar,
    shrinkage: Scalar,
    still: Scalar,
    decay: Scalar | None,
    factor: Scalar,
    scale: Scalar,
    tiny: Scalar,
) -> bool:
    good = True
    for i in range(x.size):
        total, sums = accumulator[i], linear[i]
        result = x[i]
        if still == np.float32(0):
            start = x[i]
            if decay is not None:
                start = x[i] - x[i] * decay * rate
            gradient = g[i] * factor * scale
            before = np.sqrt(total)
            total = total + gradient * gradient
            after = np.sqrt(total)
            sums = sums + (gradient + start * shrinkage - (after - before) / rate * start)
            clipped = sums
            if sums > l1:
                clipped = l1
            if sums < -l1:
                clipped = -l1
            result = (clipped - sums) / (after / rate + l2)
        out[i] = result
        good = good & (abs(out[i]) <= LARGEST)
        accumulator[i] = np.float32(0) if abs(total) < tiny else total
        good = good & (abs(total) <= LARGEST)
        linear[i] = np.float32(0) if abs(sums) < tiny else sums
        good = good & (abs(sums) <= LARGEST)
    return good
