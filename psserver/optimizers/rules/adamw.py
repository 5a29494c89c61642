"""AdamW: Adam with decoupled weight decay.

``y = x - x * weight_decay * rate``, then Adam's step is subtracted from y; the
step itself does not see the decay. Loshchilov & Hutter (ICLR 2019), algorithm
2; keras.optimizers.AdamW, which decays first and by the scheduled rate, so
`lr_scale` scales the decay as well. Every trainable variable decays, as in
Keras unless told otherwise.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from psserver.optimizers import loops
from psserver.optimizers.blocks import Array, Kernel, State
from psserver.optimizers.rule import Fused
from psserver.optimizers.rules.adam import scaled_step, step_size
from pswire.knobs import flag, number


@dataclass(frozen=True, slots=True)
class AdamW:
    """Adam that also shrinks the weights, independently of the gradient."""

    learning_rate: ClassVar[float] = 0.001
    initial: ClassVar[float] = 0.0
    step_slot: ClassVar[str | None] = None
    per_worker: ClassVar[bool] = False

    weight_decay: float = number(0.004, "part of each weight lost per update, times the rate", at_least=0)
    beta_1: float = number(0.9, "decay of the running mean of gradients", at_least=0, below=1)
    beta_2: float = number(0.999, "decay of the running mean of squared gradients", at_least=0, below=1)
    epsilon: float = number(1e-7, "added to the root of the mean square", above=0)
    amsgrad: bool = flag(False, "divide by the largest mean square so far")

    @property
    def slots(self) -> tuple[str, ...]:
        hats = ("velocity_hat",) if self.amsgrad else ()
        return ("momentum", "velocity", *hats)

    def kernel(self, rate: np.float32, step: int) -> Kernel:
        alpha = step_size(rate, self.beta_1, self.beta_2, step)
        gain_1, gain_2 = np.float32(1 - self.beta_1), np.float32(1 - self.beta_2)
        epsilon, decay = np.float32(self.epsilon), np.float32(self.weight_decay)

        def adapt(x: Array, g: Array, out: Array, state: State) -> None:
            scaled_step(g, out, state, alpha, gain_1, gain_2, epsilon)
            # x * decay * rate in this order: Keras rounds after each product.
            np.multiply(x, decay, out=g)
            np.multiply(g, rate, out=g)
            np.subtract(x, g, out=g)
            np.subtract(g, out, out=out)

        return adapt

    def fused(self, rate: np.float32, step: int) -> Fused:
        alpha = step_size(rate, self.beta_1, self.beta_2, step)
        gain_1, gain_2 = np.float32(1 - self.beta_1), np.float32(1 - self.beta_2)
        hat = "velocity_hat" if self.amsgrad else None
        scalars = (alpha, gain_1, gain_2, np.float32(self.epsilon), rate, np.float32(self.weight_decay))
        return Fused(loops.adam, ("momentum", "velocity", hat), scalars)
