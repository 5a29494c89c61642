"""The duties of one worker, the chief, for all: it validates, writes files, and sets the learning rate."""

from __future__ import annotations

import logging
import math
from typing import Any

import keras
import numpy as np

from pswire.logs.events import event
from psworker.backends.keras.step import FitError, unwrapped
from psworker.link import Link
from psworker.optimizers import beginning

log = logging.getLogger("ps-worker")


class Duties:
    """Whether this worker is the chief.

    Worker 0 is. When it has left, or does not come to the end of an epoch, the coordinator names another: all workers
    learn that there, and it holds from the next epoch on.
    """

    def __init__(self) -> None:
        # Until a job is joined.
        self.mine = True
        self._worker, self._chief = "", ""

    def join(self, link: Link) -> None:
        """Learn who is the chief of the job; where another has taken over, worker 0 is one like all others."""
        self._worker = link.info.worker
        self.mine = link.info.chief == link.info.worker if link.info.chief else link.info.rank == 0
        # The name of worker 0 is not known before the first end of an epoch.
        self._chief = link.info.chief or (link.info.worker if self.mine else "")

    def end_epoch(self, chief: str) -> None:
        """Take the name that the coordinator gave; empty: the same as before."""
        before, self._chief = self._chief, chief or self._chief
        # Given up at once, and taken over by `begin_epoch`, so that there is one chief at most.
        self.mine = self.mine and self._chief == self._worker
        if self._chief != before and (before or self._chief == self._worker):
            self._warn(before or "worker 0")

    def begin_epoch(self) -> None:
        """Take over, if this worker was named."""
        self.mine = self.mine or (bool(self._chief) and self._chief == self._worker)

    def _warn(self, before: str) -> None:
        who = "this worker does" if self._chief == self._worker else f"{self._chief} does"
        log.warning(
            "%s, which validates, saves and sets the learning rate for all, left, is done or did not reach the end of "
            "this epoch: nothing of this epoch is validated or saved, and from the next one on %s that",
            *(before, who),
            extra=event("chief_changed", worker=self._chief),
        )


def begin_rate(optimizer: Any, present: float | None) -> float | None:
    """Give a compiled optimizer the rate `present` of a job that is under way, so that callbacks see it; None leaves
    it. Return the rate that it then has; None for a schedule."""
    own = _rate(optimizer) or 0.0
    if present is not None and np.float32(present) != np.float32(beginning(own)):
        unwrapped(optimizer)._learning_rate.assign(present)
    return _rate(optimizer)


def present_rate(optimizer: Any) -> float | None:
    """Return the rate that callbacks or the script have set; None for a schedule. Raises FitError."""
    rate = _rate(optimizer)
    if rate is not None and not (math.isfinite(rate) and rate >= 0):
        raise FitError(f"the learning rate was set to {rate:g}: expected a number from 0")
    return rate


def _rate(optimizer: Any) -> float | None:
    rate = unwrapped(optimizer)._learning_rate
    # Not numpy(), which is slow, for every batch asks this.
    return float(rate.value) if isinstance(rate, keras.Variable) else None
