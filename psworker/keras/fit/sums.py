"""Which metrics of a model add up over workers: those whose variables are sums over batches.

Keras' own are such sums; a variable says otherwise by its `aggregation`. A metric of one's own says "sum" whatever it
keeps, for that is Keras' default. So it is watched: a batch that counts twice moves a sum by the same amount again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras

from pswire.logs.events import event
from psworker.backends.keras import replaced

log = logging.getLogger("ps-worker")

# Of the numbers of a metric, relative to 1 or itself.
ROUNDING = 1e-4


class MetricSums:
    """The metrics of one model."""

    def __init__(self, model: Any) -> None:
        self._model = model
        # Metrics of one's own, and by the id of each whether all batches so far were added.
        self._own: list[Any] | None = None
        self._added: dict[int, Any] = {}
        self._warned: set[int] = set()

    def metrics(self) -> list[Any]:
        """Each for itself, also those given to `compile`."""
        found: list[Any] = []
        for metric in self._model.metrics:
            found += getattr(metric, "metrics", None) or [metric]
        return found

    def adds_up(self, metric: Any) -> bool:
        """Its values over workers are those of the sums of its variables."""
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
        """Before the first batch is traced."""
        if self._own is None:
            compiled = self._model._compile_metrics
            # Before the first batch Keras has not made its list of those that were given to `compile`.
            given = [] if compiled is None else [compiled._user_metrics, compiled._user_weighted_metrics]
            found = {id(one): one for one in [*self.metrics(), *keras.tree.flatten(given)]}
            self._own = [
                one for one in found.values() if isinstance(one, keras.Metric) and not _of_keras(one)
            ]
            self._added = {id(metric): keras.ops.convert_to_tensor(True) for metric in self._own}

    @contextmanager
    def watch(self) -> Iterator[list[Any]]:
        """Watch metrics of one's own while a step runs, or is traced. Gives a list that has, at the end of the block,
        for each whether what it got was added, as an array of the backend."""
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
            near = [_same_way(*three) for three in zip(before, once, _values(metric), strict=True)]
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


def _same_way(before: Any, once: Any, twice: Any) -> Any:
    ops = keras.ops
    before, once, twice = (ops.cast(each, "float64") for each in (before, once, twice))
    return ops.all(ops.abs((twice - once) - (once - before)) <= ROUNDING * (ops.abs(twice) + 1))
