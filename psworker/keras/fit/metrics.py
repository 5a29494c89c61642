"""Metrics over all workers: an epoch's logs are those of one process on all batches, not means of means.

Keras' metrics keep sums over batches (a total and a count, a confusion matrix), and say so by their variables'
`aggregation`. A metric of the user's own has "sum" there whatever it keeps, for that is Keras' default. So it is
watched: a batch that counts twice moves a sum by the same amount again.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import keras
import numpy as np

from pswire.logs.events import event
from psworker.backends.keras.step import metrics_of, replaced
from psworker.backends.keras.variables import read
from psworker.control.epochs import EpochTotals
from psworker.link import Link

log = logging.getLogger("ps-worker")

# Of the numbers of a metric, relative to 1 or to themselves.
ROUNDING = 1e-4
# The most sums that the protocol takes in one report.
MOST_SUMS = 2**16
# The most numbers of one metric that the chief tells the others.
MOST_PARTS = 32


class MetricSums:
    """Which metrics of one model add up over workers."""

    def __init__(self, model: Any) -> None:
        self._model = model
        # The user's own metrics, and by the id of each whether all batches so far were added.
        self._own: list[Any] | None = None
        self._added: dict[int, Any] = {}
        self._warned: set[int] = set()

    def metrics(self) -> list[Any]:
        """All metrics of the model, also those given to `compile`."""
        found: list[Any] = []
        for metric in self._model.metrics:
            found += getattr(metric, "metrics", None) or [metric]
        return found

    def adds_up(self, metric: Any) -> bool:
        """Return whether the metric over all workers is what the sums of its variables give."""
        if not all(variable.aggregation == "sum" for variable in metric.variables):
            return False
        added = self._added.get(id(metric))
        if added is None or bool(added):
            return True
        if id(metric) not in self._warned:
            self._warned.add(id(metric))
            log.warning(
                "metric %r keeps something else than sums over batches, which cannot be added up over workers: each "
                "worker's logs have its own value",
                metric.name,
                extra=event("metric_own"),
            )
        return False

    def begin(self) -> None:
        """Find the metrics to watch, before the first batch is traced."""
        if self._own is None:
            self._own = [one for one in metrics_of(self._model) if not _of_keras(one)]
            self._added = {id(metric): keras.ops.convert_to_tensor(True) for metric in self._own}

    @contextmanager
    def watch(self) -> Iterator[list[Any]]:
        """Watch the user's own metrics while a step runs or is traced.

        Gives a list that holds, behind the block, one boolean of the backend per metric: the batch was added.
        """
        own = self._own or []
        found: dict[int, list[Any]] = {id(metric): [] for metric in own}
        findings: list[Any] = []
        with ExitStack() as stack:
            for metric in own:
                watched = self._watched(metric, found[id(metric)])
                stack.enter_context(replaced(metric, update_state=watched))
            yield findings
        findings += [_all(found[id(metric)]) for metric in own]

    def judge(self, findings: list[Any]) -> None:
        """Take what `watch` found in a batch."""
        for metric, added in zip(self._own or (), findings, strict=True):
            self._added[id(metric)] = keras.ops.logical_and(self._added[id(metric)], added)

    def _watched(self, metric: Any, found: list[Any]) -> Callable[..., None]:
        update = metric.update_state

        def update_state(*args: Any, **keywords: Any) -> None:
            before = _values(metric)
            update(*args, **keywords)
            once = _values(metric)
            update(*args, **keywords)
            near = [_moves_alike(*three) for three in zip(before, once, _values(metric), strict=True)]
            for variable, value in zip(metric.variables, once, strict=True):
                variable.assign(value)
            found.extend(near)

        return update_state


def _of_keras(metric: Any) -> bool:
    return bool(type(metric).update_state.__module__.startswith("keras."))


def _values(metric: Any) -> list[Any]:
    return [keras.ops.copy(variable.value) for variable in metric.variables]


def _all(found: list[Any]) -> Any:
    return keras.ops.all(keras.ops.stack(found)) if found else keras.ops.convert_to_tensor(True)


def _moves_alike(before: Any, once: Any, twice: Any) -> Any:
    """Return whether the second update moved the values as far as the first."""
    ops = keras.ops
    before, once, twice = (ops.cast(each, "float64") for each in (before, once, twice))
    return ops.all(ops.abs((twice - once) - (once - before)) <= ROUNDING * (ops.abs(twice) + 1))


class EpochMetrics:
    """The metrics of a model while `fit` runs, gathered at the end of each epoch.

    One worker, the chief, validates for all; the others get what it measured.
    """

    def __init__(self, model: Any, sums: MetricSums) -> None:
        self._model, self.sums = model, sums
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
        for metric in self.sums.metrics():
            own = list(metric.variables)
            elements = sum(int(np.prod(variable.shape)) for variable in own)
            if own and self.sums.adds_up(metric) and size + elements + 2 <= MOST_SUMS:
                found += own
                size += elements
        return found

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
            for metric in self.sums.metrics()
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
