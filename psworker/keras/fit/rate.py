"""Learning rates that callbacks or the script set, on their way to the servers."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np

from psworker.backends.keras import FitError
from psworker.keras.translate import unwrapped
from psworker.translating import beginning


class SetRate:
    """The learning rate of a compiled optimizer; None where a schedule gives it, which nobody can set."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        # The one that the servers have, or will have with the next contribution.
        self._sent = 0.0
        self.begin()

    def begin(self) -> None:
        """A rate that was set before the job begins is the one that it begins with."""
        self._sent = _rate(self._optimizer) or 0.0

    def joined(self, present: float | None) -> None:
        """The job goes on, at the rate `present`: callbacks begin with that one, too."""
        if present is not None and np.float32(present) != np.float32(beginning(self._sent)):
            unwrapped(self._optimizer)._learning_rate.assign(present)
            self._sent = _rate(self._optimizer) or 0.0

    def changed(self) -> float | None:
        """What was set since the last contribution, for the servers; None for nothing. Raises FitError.

        One worker sets it for all, so that those who are behind do not set back what others have moved.
        """
        rate = _rate(self._optimizer)
        if rate is None or rate == self._sent:
            return None
        if not (math.isfinite(rate) and rate >= 0):
            raise FitError(f"the learning rate was set to {rate:g}: expected a number from 0")
        return rate

    def sent(self, rate: float | None) -> None:
        """A contribution took `rate` along."""
        self._sent = self._sent if rate is None else rate


def _rate(optimizer: Any) -> float | None:
    rate = unwrapped(optimizer)._learning_rate
    # The variable itself: Keras' own numpy() asks much first, and this is for every batch.
    return float(rate.value) if isinstance(rate, keras.Variable) else None
