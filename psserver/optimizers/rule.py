"""What an optimizer is to this package: slots, their initial value, a numpy kernel and a fused loop."""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from psserver.optimizers.backend import Loop
from psserver.optimizers.blocks import Array, Kernel
from psserver.optimizers.magnitudes import Bounds, Magnitudes
from pswire.knobs import number


class Fused(NamedTuple):
    """One update as a fused loop: its arguments between (x, g, out) and (factor, scale, tiny).

    `slots` are names, None for one that this variant does not keep.
    """

    loop: Loop
    slots: tuple[str | None, ...]
    scalars: tuple[np.float32 | None, ...]


class Rule(Protocol):
    """One optimization rule: a frozen dataclass whose fields are its knobs.

    `learning_rate` is the default of Keras. A rule holds no arrays and no
    counters; all that it remembers is in the slots.
    """

    learning_rate: ClassVar[float]

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the arrays it keeps per element, as Keras names them."""

    @property
    def initial(self) -> float | Mapping[str, float]:
        """What every slot is filled with at first; by name where they differ, 0 for one that is not named."""

    @property
    def weight_decay(self) -> float:
        """Part of each weight that an update takes away, times the rate; 0 is none."""

    @property
    def per_worker(self) -> bool:
        """A gradient moves slots of its worker's own; all others share one set."""

    @property
    def step_slot(self) -> str | None:
        """The slot that holds the last step, learning rate and all; None where there is none."""

    def kernel(self, rate: np.float32, step: int) -> Kernel:
        """The update number `step` (the first is 1) at learning rate `rate`, for any block."""

    def fused(self, rate: np.float32, step: int) -> Fused:
        """The same update as a loop; bit-equal to `kernel`."""

    def bounds(self, rate: float, step: int, g: float, b: Magnitudes) -> Bounds:
        """How large the numbers of that update can become: see `psserver.optimizers.magnitudes`."""


def decay_knob(default: float = 0.0) -> Any:
    """The knob `weight_decay`: decoupled weight decay, as every optimizer of Keras has it.

    Loshchilov & Hutter (ICLR 2019): the update starts from ``x - x * weight_decay * rate``, and the
    gradient does not see it. Keras decays by the scheduled rate, so `lr_scale` scales the decay too.
    """
    return number(default, "part of each weight lost per update, times the rate", at_least=0)


def decay_of(rule: Rule) -> np.float32 | None:
    """`weight_decay` as a loop takes it: None where there is none."""
    return np.float32(rule.weight_decay) if rule.weight_decay else None


def decayed(x: Array, rate: np.float32, decay: np.float32 | None, scratch: Array) -> Array:
    """What a numpy kernel starts from: `x` itself, or `scratch` with the decayed weights.

    ``x * decay * rate`` in this order: Keras rounds after each product.
    """
    if decay is None:
        return x
    np.multiply(x, decay, out=scratch)
    np.multiply(scratch, rate, out=scratch)
    return np.subtract(x, scratch, out=scratch)
