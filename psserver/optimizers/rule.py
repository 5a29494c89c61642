"""What an optimizer is to this package: slots, their initial value, a numpy kernel and a fused loop."""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from psserver.optimizers.backend import Loop
from psserver.optimizers.blocks import Kernel


@dataclass(frozen=True, slots=True)
class Fused:
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
    def initial(self) -> float:
        """What every slot is filled with at first."""

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
