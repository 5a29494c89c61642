"""From the gradient of a batch to a contribution and its fate: pushed and committed, or skipped if not finite."""

from __future__ import annotations

import logging
import math
from typing import Any

from pswire.logs.events import event
from pswire.model.rows import NO_ROWS, KeysByName
from psworker.backends import StepResult
from psworker.backends.keras import scales
from psworker.engine import Grant
from psworker.errors import Diverged, PayloadRefused, Voided
from psworker.keras.fit.chief import Duties, SetRate
from psworker.local import NONFINITE_LIMIT
from psworker.session import Session

log = logging.getLogger("ps-worker")


class Contributions:
    """Contributions of one worker: numbers of batches, and how many gradients in a row were not finite."""

    def __init__(self, optimizer: Any, rate: SetRate, duties: Duties) -> None:
        self._optimizer, self._rate, self._duties = optimizer, rate, duties
        self._batch = self._bad = 0

    def begin(self, session: Session) -> None:
        """Count batches from the first that the job has not committed."""
        self._batch = session.next_batch

    @property
    def batch(self) -> int:
        """The number of the next batch."""
        return self._batch

    def send(self, session: Session, grant: Grant, result: StepResult, ahead: KeysByName = NO_ROWS) -> None:
        """Push and commit under `grant`, which is over afterwards. Raises Diverged, FitError.

        `ahead`: keys of rows of tables to read with the next version.
        """
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
                rows=result.rows,
                ahead=ahead,
            )
        except Voided as reason:
            _void(session, grant, reason)
        except PayloadRefused as refusal:
            log.warning("batch %d is skipped: %s", self._batch, refusal, extra=event("batch_skipped"))
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
            _void(session, grant, reason)

    def _finite(self, result: StepResult) -> bool:
        """Return whether the gradient is finite, as far as the step looked. Move a dynamic loss scale accordingly, as
        Keras does."""
        finite = math.isfinite(result.norm)
        optimizer = self._optimizer
        if scales(optimizer):
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


def _void(session: Session, grant: Grant, reason: Voided) -> None:
    log.info("%s", reason, extra=event("contribution_void"))
    session.abandon(grant, "cancelled")


class Fates:
    """The fates of a worker's contributions: counts by fate, and the staleness of those that were applied."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._staleness = (0, 0)

    def take(self, session: Session) -> None:
        """Count what the servers have reported since the last call."""
        for disposition in session.dispositions():
            if disposition.fate == "applied" and not disposition.version:
                continue  # the initial values, which the first worker gives
            self.counts[disposition.fate] = self.counts.get(disposition.fate, 0) + 1
            if disposition.fate == "applied":
                total, count = self._staleness
                self._staleness = total + disposition.staleness, count + 1

    def progress(self, version: int) -> dict[str, float]:
        """Values that the progress bar shows beside the loss."""
        total, count = self._staleness
        mean = total / count if count else 0.0
        return {"version": version, "staleness": mean, "dropped": self.counts.get("dropped", 0)}
