"""Lion: the sign of a mean of gradients, so that every weight moves by the rate.

    x' = x - rate * sign(beta_1 * m + (1 - beta_1) * g)
    m' = beta_2 * m + (1 - beta_2) * g

Chen et al. (2023), Symbolic Discovery of Optimization Algorithms, program 1;
keras.optimizers.Lion. Bit-equal to Keras.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from psserver.optimizers.backend import loop
from psserver.optimizers.blocks import LARGEST, Array, Kernel, State
from psserver.optimizers.magnitudes import Bounds, Magnitudes, start_of
from psserver.optimizers.rule import Fused, decay_knob, decay_of, decayed
from pswire.knobs import number

Scalar = np.float32


@dataclass(frozen=True, slots=True)
class Lion:
    """Steps of one size, by the sign of a mean of gradients."""

    learning_rate: ClassVar[float] = 0.001
    initial: ClassVar[float] = 0.0
    step_slot: ClassVar[str | None] = None
    per_worker: ClassVar[bool] = False
    slots: ClassVar[tuple[str, ...]] = ("momentum",)

    beta_1: float = number(0.9, "weight of the mean in the step's sign", at_least=0, at_most=1)
    beta_2: float = number(0.99, "decay of the running mean of gradients", at_least=0, at_most=1)
    weight_decay: float = decay_knob()

    def _scalars(self, rate: Scalar) -> tuple[Scalar, ...]:
        one, kept_1, kept_2 = np.float32(1), np.float32(self.beta_1), np.float32(self.beta_2)
        return rate, kept_1, one - kept_1, kept_2, one - kept_2

    def kernel(self, rate: np.float32, step: int) -> Kernel:
        rate, kept_1, gain_1, kept_2, gain_2 = self._scalars(rate)
        decay = decay_of(self)

        def update_block(x: Array, g: Array, out: Array, state: State) -> None:
            mean = state["momentum"]
            np.multiply(g, gain_2, out=out)
            np.multiply(g, gain_1, out=g)
            # The old mean is needed twice: for the sign first.
            forward = np.multiply(mean, kept_1)
            np.add(forward, g, out=g)
            np.multiply(mean, kept_2, out=mean)
            np.add(mean, out, out=mean)
            np.sign(g, out=g)
            np.multiply(g, rate, out=g)
            np.subtract(decayed(x, rate, decay, out), g, out=out)

        return update_block

    def fused(self, rate: np.float32, step: int) -> Fused:
        return Fused(lion, ("momentum",), (*self._scalars(rate), decay_of(self)))

    def bounds(self, rate: float, step: int, g: float, b: Magnitudes) -> Bounds:
        start, peak = start_of(self.weight_decay, rate, b["x"])
        return {"x": start + rate, "momentum": b["momentum"] + g}, max(peak, b["momentum"] + g)


@loop("rrwwfffffffff")
def lion(
    x: Array,
    g: Array,
    out: Array,
    momentum: Array,
    rate: Scalar,
    kept_1: Scalar,
    gain_1: Scalar,
    kept_2: Scalar,
    gain_2: Scalar,
    decay: Scalar | None,
    factor: Scalar,
    scale: Scalar,
    tiny: Scalar,
) -> bool:
    good = True
    for i in range(x.size):
        gradient = g[i] * factor * scale
        forward = momentum[i] * kept_1 + gradient * gain_1
        mean = momentum[i] * kept_2 + gradient * gain_2
        # NaN is neither and stays what it is.
        sign = forward
        if forward > np.float32(0):
            sign = np.float32(1)
        if forward < np.float32(0):
            sign = np.float32(-1)
        if forward == np.float32(0):
            sign = np.float32(0)
        start = x[i]
        if decay is not None:
            start = x[i] - x[i] * decay * rate
        out[i] = start - sign * rate
        good = good & (abs(out[i]) <= LARGEST)
        momentum[i] = np.float32(0) if abs(mean) < tiny else mean
        good = good & (abs(mean) <= LARGEST)
    return good
