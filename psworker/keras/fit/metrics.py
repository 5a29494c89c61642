"""Metrics over all workers: an epoch's logs are those of one process on all batches, not means of means.

Keras' metrics keep sums over batches (a total and a count, a confusion matrix), and say so by their variables'
`aggregation`. A metric with an `update_state` of the user's own has "sum" there whatever it keeps, for that is Keras'
default: its value stays each worker's own.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import replace
from typing import Any

import numpy as np

from pswire.logs.events import event
from psworker.backends.keras.variables import read
from psworker.control.epochs import EpochTotals
from psworker.link import Link

log = logging.getLogger("ps-worker")

# The most sums that the protocol takes in one report.
MOST_SUMS = 2**16
# The most numbers of one metric that the chief tells the others.
MOST_PARTS = 32


class EpochMetrics:
    """The metrics of a model while `fit` runs, gathered at the end of each epoch.

    One worker, the chief, validates for all; the others get what it measured.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._number = 0
        # Of this epoch: the metrics' variables, what they counted here, and what they counted in all workers; None
        # before all have met, or where the job is over.
        self._variables: list[Any] = []
        self._counted: list[np.ndarray[Any, Any]] = []
        self._totals: EpochTotals | None = None
        #: The workers have met at the end of this epoch.
        self.met = False
        #: Keras has asked for a validation after this epoch, which may be another worker's to make.
        self.awaited = False
        #: A number that stands for this worker's data.
        self.data = 0
        self._warned = self._warned_of_data = False
        # Metrics of which a warning has told that they stay each worker's own.
        self._own: set[int] = set()
        #: The worker that validates from the next epoch on; empty: the same as before.
        self.chief = ""

    def meet(self, link: Link, yields: Callable[[], object] | None) -> None:
        """Add up what all workers counted in the epoch, once its batches are over.

        A worker with fewer batches than others waits here; `yields` then contributes nothing under its ticket, where
        others need that to go on.
        """
        self.met = True
        self._variables = self._additive()
        self._counted = [read(variable) for variable in self._variables]
        flat = np.concatenate([np.zeros(0), *(each.ravel().astype(np.float64) for each in self._counted)])
        sums = [*flat.tolist(), float(self.data), float(self.data**2)]
        self._totals = totals = self._gather(link, self._layout(), sums, {}, yields)
        if totals is not None:
            *added, total, squares = totals.sums
            self._totals = replace(totals, sums=added)
            if self.data and totals.workers > 1 and total**2 == totals.workers * squares:
                self._warn_of_data(totals.workers)

    def exchange(self, link: Link, logs: MutableMapping[str, Any], *, validates: bool) -> int:
        """Put the values over all workers into an epoch's `logs`, after `meet`.

        `validates`: this worker measured the `val_` values of the logs for all. Returns the number of workers, 0 when
        the job is over.
        """
        own = _validated(logs) if validates else {}
        self.met, sums = False, self._totals
        gathered = None if sums is None else self._gather(link, "validation", [], own, None)
        if sums is None or gathered is None:
            return 0
        self.chief = gathered.chief
        if self.awaited and not validates and not any(name.startswith("val_") for name in gathered.values):
            self._warn_of_no_validation()
        self.awaited = False
        logs.update(_whole(gathered.values))
        if sums.workers > 1:
            logs.update(self._results(np.array(sums.sums), logs))
        return sums.workers

    def tell(self, link: Link, logs: Mapping[str, Any]) -> None:
        """Tell the servers what the only worker of a job has validated."""
        if own := _validated(logs):
            self._gather(link, "validation", [], own, None)

    def _gather(
        self,
        link: Link,
        layout: str,
        sums: list[float],
        values: Mapping[str, float],
        yields: Callable[[], object] | None,
    ) -> EpochTotals | None:
        self._number += 1
        return link.gather_epoch(self._number - 1, layout, sums, values, yields)

    def _warn_of_data(self, workers: int) -> None:
        """Warn, once, of workers whose numbers have no spread: they are equal."""
        if not self._warned_of_data:
            self._warned_of_data = True
            log.warning(
                "all %d workers train on the same data, so each sample counts %d times in an epoch: cut the data in "
                'the script (x[i::n], by session.rank and session.size), or give distribute sharding="auto"',
                *(workers, workers),
                extra=event("same_data", workers=workers),
            )

    def _warn_of_no_validation(self) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "an epoch ended without validation: the worker that validates and saves for all and sets the learning "
                'rate has left, is done or has not come to the end of this epoch; with metrics="own" each validates',
                extra=event("no_validation"),
            )

    def _additive(self) -> list[Any]:
        """Variables of the metrics that add up, up to the protocol's limit; other metrics stay each worker's own."""
        found: list[Any] = []
        size = 0
        for metric in self._metrics():
            own = list(metric.variables)
            elements = sum(int(np.prod(variable.shape)) for variable in own)
            if own and self._adds_up(metric) and size + elements + 2 <= MOST_SUMS:
                found += own
                size += elements
        return found

    def _metrics(self) -> list[Any]:
        """List all metrics of the model, also those given to `compile`."""
        return [one for each in self._model.metrics for one in getattr(each, "metrics", None) or [each]]

    def _adds_up(self, metric: Any) -> bool:
        """Return whether the metric over all workers is what the sums of its variables give."""
        if not all(variable.aggregation == "sum" for variable in metric.variables):
            return False
        if type(metric).update_state.__module__.startswith("keras."):
            return True
        if id(metric) not in self._own:
            self._own.add(id(metric))
            log.warning(
                "metric %r has an update_state of its own, which may keep something else than sums over batches: each "
                "worker's logs have its own value",
                metric.name,
                extra=event("metric_own"),
            )
        return False

    def _layout(self) -> str:
        described = [(variable.name, *variable.shape) for variable in self._variables]
        return hashlib.sha256(repr(described).encode()).hexdigest()[:32]

    def _results(self, sums: np.ndarray[Any, Any], logs: Mapping[str, Any]) -> dict[str, float]:
        """Compute the metrics' values from `sums`, and leave their variables as they were."""
        before = [read(variable) for variable in self._variables]
        start, counting = 0, set()
        for variable, array in zip(self._variables, self._counted, strict=True):
            if sums[start : start + array.size].any():
                counting.add(id(variable))
            variable.assign(sums[start : start + array.size].reshape(array.shape).astype(array.dtype))
            start += array.size
        # A user's own train_step may return a loss, say, that the metric of that name has never seen.
        unused = {
            metric.name
            for metric in self._metrics()
            if not any(id(variable) in counting for variable in metric.variables)
        }
        # A result may be a variable itself, so it is read before the variables are set back.
        found = {
            name: _plain(value)
            for name, value in self._model.get_metrics_result().items()
            if name in logs and name not in unused
        }
        for variable, value in zip(self._variables, before, strict=True):
            variable.assign(value)
        return found


def _validated(logs: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of an epoch's validation."""
    measured = {name: value for name, value in logs.items() if name.startswith("val_")}
    return {each: part for name, value in measured.items() for each, part in _parts(name, value)}


def _parts(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """Yield a number, or those of a metric of several, by class say; one of too many stays its worker's own."""
    if np.ndim(value) == 0:
        yield name, float(value)
    elif np.ndim(value) == 1 and len(value) <= MOST_PARTS:
        yield from ((f"{name}[{place}]", float(part)) for place, part in enumerate(value))


def _whole(parts: Mapping[str, float]) -> dict[str, Any]:
    """Put the numbers together again that `_parts` took apart."""
    found: dict[str, Any] = {}
    several: dict[str, dict[int, float]] = defaultdict(dict)
    for name, value in parts.items():
        part = re.fullmatch(r"(.+)\[(\d+)\]", name)
        if part is None:
            found[name] = value
        else:
            several[part[1]][int(part[2])] = value
    return found | {name: np.array([each[place] for place in sorted(each)]) for name, each in several.items()}


def _plain(value: Any) -> Any:
    array = read(value)
    return float(array) if array.ndim == 0 else array
