"""Where a worker goes on that has worked for the job before: its process was started again, or the job resumed.

Keras decides on its epochs before the first batch, and with the first batch this worker joins and learns what it has
committed. So the fit begins twice: at that batch `Resumption` raises `GoesOn`, and the second beginning is at the right
epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from psworker.backends.keras import FitError


class GoesOn(Exception):
    """The fit is to begin again, where this worker's part of the job is."""


class Resumption:
    """Batches of this worker that the job has already, and that are passed over, fit by fit."""

    def __init__(self) -> None:
        # None: the job is not joined yet.
        self._before: int | None = None
        # Fits to pass over: phases of the job that are over.
        self._fits = 0
        #: The present fit is passed over as a whole: the job has batches of a later one, or is in a later phase.
        self.passes_over = False
        # Of the epoch that is under way: batches to pass over first, and those that are left then.
        self._skip = 0
        self._left: int | None = None
        #: It was asked where this fit begins.
        self.placed = False
        #: So many epochs of this fit were trained before; 0 also of one that is to begin where it says.
        self.epochs = 0

    def begin_fit(self) -> None:
        """Keras has yet to say how many batches an epoch has."""
        self.placed, self.epochs, self.passes_over = False, 0, False
        self.end_epoch()

    def place(self, committed: int, steps: int | None, epochs: int, phases: int) -> None:
        """At the first batch of a fit of `epochs` with `steps` batches each. `committed`: batches of this worker in the
        present phase, and `phases`: how many are over, both as of the first Join. Raises GoesOn, FitError."""
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
        """The next batch to train on. Raises StopIteration where the data ends."""
        while self._skip:
            self._skip -= 1
            next(iterator)
        return next(iterator)

    def ends_epoch(self) -> bool:
        """A batch was trained; the epoch has no other one, though its data may go on."""
        if self._left is None:
            return False
        self._left -= 1
        return not self._left

    def end_epoch(self) -> None:
        """The next one is whole."""
        self._skip, self._left = 0, None
