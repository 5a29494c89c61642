"""From the gradient of a batch to a contribution: pushed and committed, or skipped where it is not finite."""

from __future__ import annotations

import logging
import math
from typing import Any

import keras

from pswire.logs.events import event
from psworker.backends import StepResult
from psworker.engine import Grant
from psworker.errors import Diverged, PayloadRefused, Voided
from psworker.keras.fit.duties import Duties
from psworker.keras.fit.rate import SetRate
from psworker.local import NONFINITE_LIMIT
from psworker.session import Session

log = logging.getLogger("ps-worker")


class Contributions:
    """Of one worker: the number of its next batch, and how many in a row were not finite."""

    def __init__(self, optimizer: Any, rate: SetRate, duties: Duties) -> None:
        self._optimizer, self._rate, self._duties = optimizer, rate, duties
        self._batch = self._bad = 0

    def begin(self, session: Session) -> None:
        """The job is joined."""
        self._batch = session.next_batch

    @property
    def batch(self) -> int:
        """The number of the next batch."""
        return self._batch

    def send(self, session: Session, grant: Grant, result: StepResult) -> None:
        """Push and commit under `grant`, which is over afterwards. Raises Diverged, FitError."""
        finite = self._finite(result)
        rate = self._rate.changed() if self._duties.mine else None
        try:
            if not finite:
                raise PayloadRefused(f"the gradient's norm is {result.norm} (loss {result.loss})")
            session.contribute(
                grant,
                result.payloads,
                samples=result.samples,
                loss=result.loss,
                batch=self._batch,
                ready=True,
                learning_rate=rate,
            )
        except Voided as reason:
            log.info("%s", reason, extra=event("contribution_void"))
            session.abandon(grant, "cancelled")
        except PayloadRefused as refusal:
            told = event("batch_skipped")
            log.warning("batch %d is skipped: %s", self._batch, refusal, extra=told)
            session.abandon(grant, "nonfinite")
            self._bad += 1
            if self._bad >= NONFINITE_LIMIT:
                raise Diverged(
                    f"{self._bad} batches in a row gave no finite gradient: lower the learning rate, or look for a "
                    "division by zero or log(0) in the loss"
                ) from refusal
        else:
            self._bad = 0
            self._rate.sent(rate)
        self._batch += 1

    def send_nothing(self, session: Session, grant: Grant) -> None:
        """Commit zeros of no samples under `grant`: others wait for this worker, which has no batch for them."""
        try:
            flats = session.plan.scatter_by_name({})
            # Not a batch of this worker's data: the number of its next one stays.
            session.contribute(grant, flats, samples=0, batch=max(0, self._batch - 1), ready=True)
        except Voided as reason:
            log.info("%s", reason, extra=event("contribution_void"))
            session.abandon(grant, "cancelled")

    def _finite(self, result: StepResult) -> bool:
        """Is the gradient finite, as far as this is asked here? A dynamic loss scale follows from the answer, as in
        Keras."""
        finite = math.isfinite(result.norm)
        optimizer = self._optimizer
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            if not finite:
                optimizer.step_counter.assign(0)
                optimizer.dynamic_scale.assign(optimizer.dynamic_scale * 0.5)
                self._bad = min(self._bad, NONFINITE_LIMIT - 2)  # halving is meant to take several batches
            elif int(optimizer.step_counter) == optimizer.dynamic_growth_steps - 1:
                optimizer.step_counter.assign(0)
                optimizer.dynamic_scale.assign(optimizer.dynamic_scale * 2.0)
            else:
                optimizer.step_counter.assign_add(1)
        return finite
