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
import tensorflow as tf

from pswire.logs.events import event

log = logging.getLogger("ps-worker")

# Of the numbers of a metric, relative to 1 or itself.
ROUNDING = 1e-4


class MetricSums:
    """The metrics of one model."""

    def __init__(self, model: Any) -> None:
        self._model = model
        # Metrics of one's own, and by the id of each whether all batches so far were added, a tf.Variable.
        self._own: list[Any] | None = None
        self._added: dict[int, Any] = {}
        self._told: set[int] = set()

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
        if added is None or bool(added.numpy()):
            return True
        if id(metric) not in self._told:
            self._told.add(id(metric))
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
            self._added = {id(metric): tf.Variable(True, trainable=False) for metric in self._own}

    @contextmanager
    def watch(self) -> Iterator[None]:
        """While a step runs, or is traced, metrics of one's own are watched."""
        with ExitStack() as stack:
            for metric in self._own or ():
                object.__setattr__(metric, "update_state", self._watched(metric))
                stack.callback(object.__delattr__, metric, "update_state")
            yield

    def _watched(self, metric: Any) -> Callable[..., None]:
        added, update = self._added[id(metric)], metric.update_state

        def update_state(*args: Any, **keywords: Any) -> None:
            before = _values(metric)
            update(*args, **keywords)
            once = _values(metric)
            update(*args, **keywords)
            near = [_same_way(*three) for three in zip(before, once, _values(metric), strict=True)]
            for variable, value in zip(metric.variables, once, strict=True):
                variable.assign(value)
            added.assign(tf.reduce_all([added, *near]))

        return update_state


def _of_keras(metric: Any) -> bool:
    return bool(type(metric).update_state.__module__.startswith("keras."))


def _values(metric: Any) -> list[Any]:
    return [tf.identity(variable.value) for variable in metric.variables]


def _same_way(before: Any, once: Any, twice: Any) -> Any:
    first, then = (
        tf.cast(b, tf.float64) - tf.cast(a, tf.float64) for a, b in ((before, once), (once, twice))
    )
    size = tf.abs(tf.cast(twice, tf.float64))
    return tf.reduce_all(tf.abs(then - first) <= ROUNDING * (size + 1))
