"""Adadelta: steps in the unit of the weights, from running means of gradients and steps squared.

    a' = rho * a + (1 - rho) * g*g
    d  = -(sqrt(s + epsilon) * g / sqrt(a' + epsilon))
    s' = rho * s + (1 - rho) * d*d
    x' = x + rate * d

Zeiler (2012), algorithm 1, where the rate is 1; keras.optimizers.Adadelta. Bit-equal to Keras.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from psserver.optimizers.backend import loop
from psserver.optimizers.blocks import LARGEST, Array, Kernel, State
from psserver.optimizers.magnitudes import LEAST, Bounds, Magnitudes, start_of
from psserver.optimizers.rule import Fused, decay_knob, decay_of, decayed
from pswire.knobs import number

Scalar = np.float32


@dataclass(frozen=True, slots=True)
class Adadelta:
    """Steps as large as recent steps were, by the ratio to recent gradients."""

    learning_rate: ClassVar[float] = 0.001
    initial: ClassVar[float] = 0.0
    step_slot: ClassVar[str | None] = None
    per_worker: ClassVar[bool] = False
    slots: ClassVar[tuple[str, ...]] = ("accumulated_grad", "accumulated_delta_var")

    rho: float = number(0.95, "decay of the running means", at_least=0, below=1)
    epsilon: float = number(1e-7, "added to the means under the roots", above=0)
    weight_decay: float = decay_knob()

    def kernel(self, rate: np.float32, step: int) -> Kernel:
        rho, gain, epsilon = np.float32(self.rho), np.float32(1 - self.rho), np.float32(self.epsilon)
        decay = decay_of(self)

        def update_block(x: Array, g: Array, out: Array, state: State) -> None:
            squares, steps = state["accumulated_grad"], state["accumulated_delta_var"]
            np.multiply(g, g, out=out)
            np.multiply(out, gain, out=out)
            np.multiply(squares, rho, out=squares)
            np.add(squares, out, out=squares)
            np.add(steps, epsilon, out=out)
            np.sqrt(out, out=out)
            np.multiply(out, g, out=g)
            np.add(squares, epsilon, out=out)
            np.sqrt(out, out=out)
            np.divide(g, out, out=g)
            np.negative(g, out=g)
            np.multiply(g, g, out=out)
            np.multiply(out, gain, out=out)
            np.multiply(steps, rho, out=steps)
            np.add(steps, out, out=steps)
            np.multiply(g, rate, out=g)
            np.add(decayed(x, rate, decay, out), g, out=out)

        return update_block

    def fused(self, rate: np.float32, step: int) -> Fused:
        rho, gain, epsilon = np.float32(self.rho), np.float32(1 - self.rho), np.float32(self.epsilon)
        return Fused(adadelta, self.slots, (rate, rho, gain, epsilon, decay_of(self)))

    def bounds(self, rate: float, step: int, g: float, b: Magnitudes) -> Bounds:
        """The gradient is at most 1 / sqrt(1 - rho) times the root below it, unless its square is lost to rounding:
        below 2**-60 / sqrt(1 - rho) it is small enough whatever the root."""
        start, peak = start_of(self.weight_decay, rate, b["x"])
        if not (self.epsilon > LEAST and 1 - self.rho > 2.0**-24):
            return {"x": math.inf}, math.inf
        least, gain = math.sqrt(self.epsilon), 1 - self.rho
        ratio = min(g / least, max(1.01 / math.sqrt(gain), 2.0**-60 / math.sqrt(gain) / least))
        deltas = b["accumulated_delta_var"]
        moved = math.sqrt(deltas + self.epsilon) * ratio
        found = {
            "accumulated_grad": b["accumulated_grad"] * self.rho + g * g * gain,
            "accumulated_delta_var": deltas * self.rho + moved * moved * gain,
            "x": start + moved * rate,
        }
        return found, max(peak, g * g, math.sqrt(deltas + self.epsilon) * g, moved * moved)


@loop("rrwwwffffffff")
def adadelta(
    x: Array,
    g: Array,
    out: Array,
    squares: Array,
    steps: Array,
    rate: Scalar,
    rho: Scalar,
    gain: Scalar,
    epsilon: Scalar,
    decay: Scalar | None,
    factor: Scalar,
    scale: Scalar,
    tiny: Scalar,
) -> bool:
    good = True
    for i in range(x.size):
        gradient = g[i] * factor * scale
        square = squares[i] * rho + gradient * gradient * gain
        step = -(np.sqrt(steps[i] + epsilon) * gradient / np.sqrt(square + epsilon))
        mean = steps[i] * rho + step * step * gain
        start = x[i]
        if decay is not None:
            start = x[i] - x[i] * decay * rate
        out[i] = start + step * rate
        good = good & (abs(out[i]) <= LARGEST)
        squares[i] = np.float32(0) if abs(square) < tiny else square
        good = good & (abs(square) <= LARGEST)
        steps[i] = np.float32(0) if abs(mean) < tiny else mean
        good = good & (abs(mean) <= LARGEST)
    return good
