"""Where a worker continues that has worked for the job before: its process was started again, or the job resumed.

Keras chooses its epochs before the first batch, and only at the first batch this worker joins and learns what it has
committed. So the fit begins twice: at that batch `Resumption` raises `GoesOn`, and the second beginning is at the right
epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from psworker.backends.keras.step import FitError


class GoesOn(Exception):
    """Raised to begin the fit again, where this worker's part of the job is."""


class Resumption:
    """Passes over batches that this worker has committed before, fit by fit."""

    def __init__(self) -> None:
        # None: the job is not joined yet.
        self._before: int | None = None
        # Fits to pass over: phases of the job that are over.
        self._fits = 0
        #: The present fit is passed over as a whole: the job has batches of a later one, or is in a later phase.
        self.passes_over = False
        # Batches of the present epoch to pass over, and those that are left then.
        self._skip = 0
        self._left: int | None = None
        #: `place` has found where this fit begins.
        self.placed = False
        #: Epochs of this fit that were trained before.
        self.epochs = 0

    def begin_fit(self) -> None:
        """Forget the last fit; `place` needs the number of batches of an epoch, which Keras finds out later."""
        self.placed, self.epochs, self.passes_over = False, 0, False
        self.end_epoch()

    def place(self, committed: int, steps: int | None, epochs: int, phases: int) -> None:
        """Find where a fit of `epochs` with `steps` batches each begins, at its first batch.

        `committed`: this worker's batches in the present phase; `phases`: the number of phases that are over; both at
        the first Join. Raises GoesOn where batches are to be passed over, FitError where they cannot be counted.
        """
        self.placed = True
        if self._before is None:
            self._before, self._fits = committed, phases
        if self._fits:
            self._fits -= 1
            self.epochs, self.passes_over = epochs, True
            raise GoesOn
        if not self._before:
            return
        if not steps:
            raise FitError(
                f"this worker has committed {self._before} batches of the job before, and cannot tell which epoch that "
                "is: the data has no known length; give fit steps_per_epoch, or a dataset with a cardinality"
            )
        done = min(self._before // steps, epochs)
        self._before -= done * steps
        if done < epochs:
            self._skip, self._before = self._before, 0
            self._left = steps - self._skip
        self.epochs, self.passes_over = done, bool(self._before)
        raise GoesOn

    def next(self, iterator: Iterator[Any]) -> Any:
        """Return the next batch to train on. Raises StopIteration where the data ends."""
        while self._skip:
            self._skip -= 1
            next(iterator)
        return next(iterator)

    def ends_epoch(self) -> bool:
        """Count a batch; True where it was the epoch's last, though its data may go on."""
        if self._left is None:
            return False
        self._left -= 1
        return not self._left

    def end_epoch(self) -> None:
        """Pass over nothing of the next epoch."""
        self._skip, self._left = 0, None
