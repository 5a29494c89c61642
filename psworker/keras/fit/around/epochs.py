"""An epoch's metrics over all workers: sums of what the metrics have counted, not means of means.

Keras' metrics are variables that add up (a total and a count, a confusion matrix), and say so
(`aggregation="sum"`). One worker validates for all; the others hear what it measured.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import replace
from typing import Any

import numpy as np

from pswire.logs.events import event
from psworker.backends.keras import read
from psworker.control.epochs import EpochTotals
from psworker.keras.fit.sums import MetricSums
from psworker.session import Session

log = logging.getLogger("ps-worker")

# What one report may have, by the protocol.
MOST_SUMS = 2**16


class EpochMetrics:
    """The metrics of a model while `fit` runs."""

    def __init__(self, model: Any, sums: MetricSums) -> None:
        self._model, self.sums = model, sums
        self._number = 0
        # Of this epoch: the metrics' variables, what they have counted here, and that over all workers; None before
        # all have met, or where the job is over.
        self._variables: list[Any] = []
        self._counted: list[np.ndarray[Any, Any]] = []
        self._totals: EpochTotals | None = None
        #: The workers have met at the end of this epoch.
        self.met = False
        #: Keras has asked for a validation behind this epoch, which may be another worker's to make.
        self.awaited = False
        #: What this worker trains on, as a number; 0: the coordinator deals it.
        self.data = 0
        self._told = self._told_of_data = False
        #: Who validates from the next epoch on; empty: as before.
        self.chief = ""

    def meet(self, session: Session, yields: Callable[[], object] | None) -> None:
        """The epoch's batches are over: add up what all workers have counted. Whoever has fewer batches than the others
        waits here; `yields`: contributes nothing where they need its contribution to go on."""
        self.met = True
        self._variables = self._additive()
        self._counted = [read(variable) for variable in self._variables]
        flat = np.concatenate([np.zeros(0), *(each.ravel().astype(np.float64) for each in self._counted)])
        sums = [*flat.tolist(), float(self.data), float(self.data**2)]
        self._totals = totals = self._gather(session, self._layout(), sums, {}, yields)
        if totals is not None:
            *added, total, squares = totals.sums
            self._totals = replace(totals, sums=added)
            if self.data and totals.workers > 1 and total**2 == totals.workers * squares:
                self._tell_of_data(totals.workers)

    def exchange(self, session: Session, logs: MutableMapping[str, Any], *, validates: bool) -> int:
        """Put the values over all workers into an epoch's `logs`, behind `meet`. Returns how many workers they are of,
        0 when the job is over. `validates`: the `val_` values of the logs are measured here, for all."""
        # One number each; a metric of several, by class, stays its worker's own.
        own = {
            name: float(value)
            for name, value in logs.items()
            if validates and name.startswith("val_") and np.ndim(value) == 0
        }
        self.met, sums = False, self._totals
        told = None if sums is None else self._gather(session, "validation", [], own, None)
        if sums is None or told is None:
            return 0
        self.chief = told.chief
        if self.awaited and not validates and not any(name.startswith("val_") for name in told.values):
            self._miss()
        self.awaited = False
        logs.update(told.values)
        if sums.workers > 1:
            logs.update(self._results(np.array(sums.sums), logs))
        return sums.workers

    def _gather(
        self,
        session: Session,
        layout: str,
        sums: list[float],
        values: Mapping[str, float],
        yields: Callable[[], object] | None,
    ) -> EpochTotals | None:
        self._number += 1
        return session.gather_epoch(self._number - 1, layout, sums, values, yields)

    def _tell_of_data(self, workers: int) -> None:
        """No spread among the numbers: they are one."""
        if not self._told_of_data:
            self._told_of_data = True
            log.warning(
                "all %d workers train on the same data, so each sample counts %d times in an epoch: cut the data in "
                "the script (x[i::n], by session.worker_index and session.worker_count), or give distribute "
                'sharding="auto" or "units"',
                *(workers, workers),
                extra=event("same_data", workers=workers),
            )

    def _miss(self) -> None:
        if not self._told:
            self._told = True
            log.warning(
                "an epoch ended without validation: the worker that validates and saves for all and sets the learning "
                'rate has left, is done or has not come to the end of this epoch; with metrics="own" each validates',
                extra=event("no_validation"),
            )

    def _additive(self) -> list[Any]:
        """Those that add up, as many as fit; a metric of another kind stays each worker's own."""
        found: list[Any] = []
        size = 0
        for metric in self.sums.metrics():
            own = list(metric.variables)
            elements = sum(int(np.prod(variable.shape)) for variable in own)
            if own and self.sums.adds_up(metric) and size + elements + 2 <= MOST_SUMS:
                found += own
                size += elements
        return found

    def _layout(self) -> str:
        said = [(variable.name, *variable.shape) for variable in self._variables]
        return hashlib.sha256(repr(said).encode()).hexdigest()[:32]

    def _results(self, sums: np.ndarray[Any, Any], logs: Mapping[str, Any]) -> dict[str, float]:
        """The metrics' values where they have counted `sums`. They are as they were afterwards."""
        before = [read(variable) for variable in self._variables]
        start, counting = 0, set()
        for variable, array in zip(self._variables, self._counted, strict=True):
            if sums[start : start + array.size].any():
                counting.add(id(variable))
            variable.assign(sums[start : start + array.size].reshape(array.shape).astype(array.dtype))
            start += array.size
        # A train_step of one's own may return a loss, say, that the metric of that name has never seen.
        unused = {
            metric.name
            for metric in self.sums.metrics()
            if not any(id(variable) in counting for variable in metric.variables)
        }
        # A result may be a variable itself: it is read before that is as it was.
        found = {
            name: _plain(value)
            for name, value in self._model.get_metrics_result().items()
            if name in logs and name not in unused
        }
        for variable, value in zip(self._variables, before, strict=True):
            variable.assign(value)
        return found


def _plain(value: Any) -> Any:
    array = read(value)
    return float(array) if array.ndim == 0 else array
