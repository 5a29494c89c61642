"""`fit` on Keras' TensorFlow backend: `train_step` traced into the one step of jobs and of `fit`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from psworker.backends import Landing, StepResult
from psworker.backends.keras import (
    Computation,
    FitStep,
    disturbed,
    near,
    take_up,
    undone,
    unwrapped,
)
from psworker.backends.lookups import LookedUp
from psworker.backends.tensorflow.caught import caught_step
from psworker.backends.tensorflow.flats import FlatLayout, landing, rounded, tensor_of, widened
from psworker.backends.tensorflow.rows import Tables
from psworker.backends.tensorflow.step import FlatStep
from psworker.backends.tensorflow.variables import ModelVariables


def _place(variable: Any, array: NDArray[Any]) -> Any:
    value = tf.cast(widened(tensor_of(array)), variable.value.dtype)
    variable.value.assign(value)
    return value


def _change(now: Any, before: Any) -> Any:
    return tf.cast(now, tf.float32) - tf.cast(before, tf.float32)


def _fetch(value: Any, start: int, stop: int, dtype: np.dtype[Any]) -> Landing:
    rows = value if value.shape.rank == 0 or stop - start == value.shape[0] else value[start:stop]
    wire = tensor_of(np.empty(0, dtype)).dtype
    return landing(tf.reshape(rounded(rows, wire), [-1]))


framework = SimpleNamespace(
    name="tensorflow",
    traces=lambda values: tf.inside_function(),
    place=_place,
    read=lambda value: value.numpy(),
    change=_change,
    fetch=_fetch,
    device=lambda value: value.device.rpartition("/device:")[2].lower(),
)


class TensorFlowStep:
    """The step of `fit`, in traced functions: one for the batch, one for new weights into the model."""

    def __init__(self, step: FitStep, before: TensorFlowStep | None) -> None:
        self._of, self._model, found = step, step.model, step.found
        self._variables = ModelVariables(
            found.specs,
            *(tuple(map(_value, several)) for several in (found.variables, found.local, found.seeds)),
        )
        # The payloads that the model's weights were made from.
        self._weights: list[Any] = [] if before is None else before._weights
        self._layout = FlatLayout(step.plan, self._variables)
        self._dtype = tensor_of(np.empty(0, step.dtype)).dtype
        own_step = type(self._model).train_step is not keras.Model.train_step
        together = not own_step and not unwrapped(self._model.optimizer).clipnorm
        tables = Tables(self._model._flatten_layers(), together=together)
        self._trained = (*self._variables.variables[: self._variables.trainable], *tables.scratch)
        self._finder = tables.finder(self._objective)
        self._eager, jit = self._model.run_eagerly, bool(self._model.jit_compile)
        self._step = FlatStep(
            *(step.plan, self._variables),
            tables.over_rows(self._objective) if tables.specs else self._objective,
            step.process,
            trace=lambda body: self._traced(body, jit),
            every=step.every,
            dtypes=[self._dtype] * len(step.plan.shards),
            norm=step.norm,
        )
        # By the dtypes of payloads, and whether the version is new.
        self._putting: dict[tuple[Any, ...], Any] = {}
        self._compare = self._traced(self._same, False)

    @property
    def placed(self) -> bool:
        return bool(self._weights)

    def find(self, batch: Any) -> Callable[[], LookedUp]:
        return self._finder(batch)

    def prepare(self, batch: Any) -> None:
        if not self._eager:
            specs = [tf.TensorSpec([shard.elements], self._dtype) for shard in self._of.plan.shards]
            self._step.trace(specs, batch)

    def put(self, flats: Sequence[NDArray[Any]], version: int, *, new: bool) -> None:
        self._weights = [tensor_of(flat) for flat in flats]
        self._put(version, new)

    def restore(self, version: int) -> None:
        self._put(version, False)

    def same(self, tolerance: float) -> list[bool]:
        found: list[bool] = self._compare(self._weights, tf.constant(tolerance, tf.float32)).numpy().tolist()
        return found

    def add(self, batch: Any) -> Any:
        logs, findings = self._step.add(self._weights, batch)
        self._of.judge(findings)
        return logs

    def finish(self, batch: Any, samples: int) -> StepResult:
        result, (logs, findings) = self._step.finish(self._weights, batch, samples)
        self._of.judge(findings)
        return replace(result, logs=logs)

    def rehearse(self, batch: Any) -> None:
        sums = [tf.identity(total) for total in self._step.scratch]
        with undone(disturbed(self._of), tf.identity):
            if self._of.every == 1:
                self._step.finish(self._weights, batch, 0)
            else:
                self._step.add(self._weights, batch)
        for total, value in zip(self._step.scratch, sums, strict=True):
            total.assign(value)
        self._model.reset_metrics()

    def _put(self, version: int, new: bool) -> None:
        """By the one concrete function for such payloads: to find it anew takes longer than what it does."""
        key = (new, *(tensor.dtype for tensor in self._weights))
        put = self._putting.get(key)
        if put is None:
            put = self._take_new if new else self._take
            if not self._eager:
                specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in self._weights]
                traced = tf.function(put, autograph=False)
                put = traced.get_concrete_function(specs, tf.TensorSpec([], tf.int64))
            self._putting[key] = put
        put(self._weights, tf.constant(version, tf.int64))

    def _traced(self, function: Any, jit: bool) -> Any:
        if self._eager:
            return function
        return tf.function(function, reduce_retracing=True, jit_compile=jit, autograph=False)

    # Traced

    def _objective(self, batch: Any) -> tuple[Any, Any, list[Any]]:
        with self._of.watch() as findings:
            logs, loss, gradients = caught_step(self._model, self._trained, batch)
        return (logs, list(findings)), loss, gradients

    def _take_new(self, flats: list[Any], version: Any) -> None:
        self._step.take(flats)
        take_up(self._model.optimizer, version, new=True)

    def _take(self, flats: list[Any], version: Any) -> None:
        self._step.take(flats)
        take_up(self._model.optimizer, version, new=False)

    def _same(self, flats: list[Any], tolerance: Any) -> Any:
        pairs = zip(self._variables.variables, self._layout.cut(flats), strict=True)
        return tf.stack([near(variable, value, tolerance) for variable, value in pairs])


def _value(variable: Any) -> Any:
    return variable.value


def computation(step: FitStep, before: Computation | None) -> TensorFlowStep:
    return TensorFlowStep(step, before if isinstance(before, TensorFlowStep) else None)


def train_function(train: Callable[[Iterator[Any]], Any]) -> Callable[..., Any]:
    return train


def keep_state(model: Any) -> dict[str, Callable[..., Any]]:
    return {}


def endless(batch: Any, *, differ: bool) -> Any:
    sizes = {tensor.shape[0] for tensor in keras.tree.flatten(batch) if tensor.shape.rank} if differ else ()
    if len(sizes) != 1:
        return tf.data.Dataset.from_tensors(batch).repeat()
    # The graph then knows as little about the size of a batch as Keras' own.
    return tf.data.Dataset.from_tensor_slices(batch).batch(*sizes).repeat()


def refuse(model: Any) -> str | None:
    if model._distribute_strategy is not None:
        kind = type(model._distribute_strategy).__name__
        return (
            f"the model was made under TensorFlow's {kind}, which keeps a copy of each variable on each device, and "
            "servers take the place of it: expected a model that is made and compiled outside of strategy.scope(), "
            "and a worker for each device"
        )
    return None
