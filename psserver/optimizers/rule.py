"""What an optimizer is to this package: slots, their initial value, and a kernel."""

from typing import ClassVar, Protocol

import numpy as np

from psserver.optimizers.blocks import Kernel


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

    def kernel(self, rate: np.float32, step: int) -> Kernel:
        """The update number `step` (the first is 1) at learning rate `rate`, for any block."""
