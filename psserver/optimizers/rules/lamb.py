"""LAMB: Adam's step, scaled for each variable to the variable's own norm times the rate.

With t = 1, 2, ..., for each variable::

    m' = m + (g - m) * (1 - beta_1)
    v' = v + (g*g - v) * (1 - beta_2)
    u = m' / (1 - beta_1**t) / (sqrt(v' / (1 - beta_2**t)) + epsilon)
    x' = x - (|x| / |u|) * rate * u

where |x| / |u|, of Euclidean norms, is 1 if either is 0. You et al. (ICLR 2020), algorithm 2, without its bounds on
|x|; keras.optimizers.Lamb, which first takes weight decay from x and adds no share of it to u. Slots are
bit-equal to Keras; norms are summed in float64 here. Each variable must lie whole on one server.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from psserver.optimizers.blocks import Array, bounded, pieces, squares
from psserver.optimizers.rule import WholeRule, decay_knob, decayed
from pswire.knobs import number


@dataclass(frozen=True, slots=True)
class Lamb(WholeRule):
    """Adam with steps in proportion to each variable's norm, for large batches."""

    learning_rate: ClassVar[float] = 0.001
    slots: ClassVar[tuple[str, ...]] = ("momentum", "velocity")
    needs: ClassVar[str] = "scales each step by the norm of the whole variable"

    beta_1: float = number(0.9, "decay of the running mean of gradients", at_least=0, below=1)
    beta_2: float = number(0.999, "decay of the running mean of squared gradients", at_least=0, below=1)
    epsilon: float = number(1e-7, "added to the root of the mean square", above=0)
    weight_decay: float = decay_knob()

    def step_whole(
        self,
        x: Array,
        g: Array,
        out: Array,
        state: Mapping[str, Array],
        shape: tuple[int, ...],
        *,
        rate: np.float32,
        step: int,
        decay: np.float32 | None,
    ) -> None:
        gain_1, gain_2 = np.float32(1 - self.beta_1), np.float32(1 - self.beta_2)
        rest_1, rest_2 = self.rest(self.beta_1, step), self.rest(self.beta_2, step)
        epsilon = np.float32(self.epsilon)
        weights = updates = 0.0
        for block in pieces(x.size):
            mean, square, u, free = state["momentum"][block], state["velocity"][block], g[block], out[block]
            np.subtract(u, mean, out=free)
            np.multiply(free, gain_1, out=free)
            np.add(mean, free, out=mean)
            np.multiply(u, u, out=u)
            np.subtract(u, square, out=u)
            np.multiply(u, gain_2, out=u)
            np.add(square, u, out=square)
            np.divide(square, rest_2, out=free)
            np.sqrt(free, out=free)
            np.add(free, epsilon, out=free)
            np.divide(mean, rest_1, out=u)
            np.divide(u, free, out=u)
            updates += squares(u)
            weights += squares(decayed(x[block], rate, decay, free))
        ratio = math.sqrt(weights) / math.sqrt(updates) if weights > 0 and updates > 0 else 1.0
        # Bounded, so that no step is longer than the rate times the variable, however small u is.
        length = bounded(float(np.float32(bounded(ratio)) * float(rate)))
        for block in pieces(x.size):
            start = decayed(x[block], rate, decay, out[block])
            np.multiply(g[block], length, out=g[block])
            np.subtract(start, g[block], out=out[block])

    @staticmethod
    def rest(beta: float, step: int) -> np.float32:
        """Return ``1 - beta ** step``, the bias correction of means that start at zero."""
        return np.float32(1) - np.float32(math.pow(np.float32(beta), step))
