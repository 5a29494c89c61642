"""One step on TensorFlow, of jobs and of `fit`: `train_step`, traced into a function from payloads to payloads.

Every payload is one vector per shard, laid out by the plan as [trainable | state], in float32 or in the dtype in which
it travels. The weights of one version go in; out come, in the same layout, the gradient of the batch's mean loss where
the weights are trainable, and the change of the values (after - before) where they are state. All arithmetic is as if
the weights had come as float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from psworker.backends import Landing, StepResult
from psworker.backends.keras.step import (
    CompiledStep,
    Computation,
    assigns,
    catching,
    equal,
    take_up,
)
from psworker.backends.keras.variables import native
from psworker.backends.lookups import LookedUp
from psworker.backends.tensorflow.bare import bare, save
from psworker.backends.tensorflow.device import set_up
from psworker.backends.tensorflow.flats import (
    FlatLayout,
    landing,
    payload_of,
    rounded,
    tensor_of,
    widened,
)
from psworker.backends.tensorflow.rows import LayerTables
from psworker.backends.tensorflow.specs import spec_of, tensor
from psworker.backends.tensorflow.variables import collect
from psworker.backends.tensorflow.written import watching

__all__ = [
    "bare",
    "collect",
    "computation",
    "framework",
    "keep_state",
    "refuse",
    "save",
    "set_up",
    "train_function",
]


def _place(variable: Any, array: NDArray[Any]) -> Any:
    variable = native(variable)
    value = tf.cast(widened(tensor_of(array)), variable.dtype)
    variable.assign(value)
    return value


def _change(now: Any, before: Any) -> Any:
    return tf.cast(now, tf.float32) - tf.cast(before, tf.float32)


def _fetch(value: Any, start: int, stop: int, dtype: np.dtype[Any]) -> Landing:
    rows = value if value.shape.rank == 0 or stop - start == value.shape[0] else value[start:stop]
    wire = tensor_of(np.empty(0, dtype)).dtype
    return landing(tf.reshape(rounded(rows, wire), [-1]))


framework = SimpleNamespace(
    name="tensorflow",
    kinds=(keras.Variable, tf.Variable),
    traces=lambda values: tf.inside_function(),
    place=_place,
    read=lambda value: value.numpy(),
    change=_change,
    fetch=_fetch,
    device=lambda value: value.device.rpartition("/device:")[2].lower(),
    tensor=tensor,
)


class TensorFlowStep:
    """A step in traced functions. Where somebody looks at the model between versions, new weights come into it by a
    function of their own; else by that of the batch, which saves a call.

    Gradients are dense, and float32 until they are rounded for the wire, whatever the variable's dtype: zeros for a
    variable that the loss does not reach, duplicates summed for sparse ones (embeddings). A batch may be a `LookedUp`,
    with rows.
    """

    def __init__(self, step: CompiledStep, before: TensorFlowStep | None) -> None:
        self._of, self._model, found = step, step.model, step.found
        self._variables = [native(each) for each in found.variables]
        # The payloads that the model's weights were made from, and whether they are yet to come into it.
        self._weights: list[Any] = [] if before is None else before._weights
        self._due = False
        self._layout = FlatLayout(step.plan, self._variables)
        self._dtype = None if step.dtype is None else tensor_of(np.empty(0, step.dtype)).dtype
        tables = LayerTables(self._model._flatten_layers(), together=not step.apart)
        trained = found.variables[: found.trainable]
        # As the user knows them, and TensorFlow's own.
        self._known, self._trained = (
            (*trained, *tables.scratch),
            (*map(native, trained), *tables.scratch),
        )
        self._finder = tables.finder(self._run)
        self._objective = tables.over_rows(self._run) if tables.specs else self._run
        # Over the batches of a contribution before its last: sums of losses and of gradients, else zeros.
        summed = [variable.shape for variable in map(native, trained)] if step.every > 1 else []
        self._sums = [tf.Variable(tf.zeros(shape), trainable=False) for shape in [(), *summed]]
        self._eager, jit = self._model.run_eagerly, bool(self._model.jit_compile)
        bodies = (self._add, self._finish, self._take_and_add, self._take_and_finish)
        self._adds, self._finishes, self._first_adds, self._first_finishes = (
            self._traced(body, jit) for body in bodies
        )
        # By the dtypes of payloads, and whether the version is new.
        self._putting: dict[tuple[Any, ...], Any] = {}
        self._compare = self._traced(self._same, False)

    @property
    def placed(self) -> bool:
        return bool(self._weights)

    def find(self, batch: Any) -> Callable[[], LookedUp]:
        return self._finder(batch)

    def prepare(self, batch: Any, *, differ: bool = False) -> None:
        if self._eager:
            return
        dtypes = (
            [each.dtype for each in self._weights] if self._due else [self._dtype] * len(self._of.plan.shards)
        )
        specs = [
            tf.TensorSpec([shard.elements], dtype)
            for shard, dtype in zip(self._of.plan.shards, dtypes, strict=True)
        ]
        batch = fed(batch, open=True)
        if differ:
            batch = tf.nest.map_structure(spec_of, batch)
        if self._of.every == 1:
            functions = [self._first_finishes if self._due else self._finishes]
        else:
            functions = [*([self._first_adds] if self._due else []), self._adds, self._finishes]
        for each in functions:
            each.get_concrete_function(specs, batch)

    def put(self, flats: Sequence[NDArray[Any]], version: int | None = None, *, new: bool = False) -> None:
        self._weights, self._due = [tensor_of(flat) for flat in flats], version is None
        if version is not None:
            self._put(version, new)

    def same(self) -> list[bool]:
        found: list[bool] = self._compare(self._weights).numpy().tolist()
        return found

    def add(self, batch: Any) -> Any:
        function, self._due = self._first_adds if self._due else self._adds, False
        return function(self._weights, fed(batch))

    def finish(self, batch: Any, samples: int) -> StepResult:
        function, self._due = self._first_finishes if self._due else self._finishes, False
        payloads, loss, norm, rows, logs = function(self._weights, fed(batch))
        made = StepResult([payload_of(parts) for parts in payloads], float(loss), float(norm), samples, logs)
        if isinstance(batch, LookedUp):
            made.rows.update(batch.gradients(landing(each)() for each in rows))
        return made

    def _put(self, version: int, new: bool) -> None:
        """By the one concrete function for such payloads: to find it anew takes longer than what it does."""
        key = (new, *(tensor.dtype for tensor in self._weights))
        put = self._putting.get(key)
        if put is None:
            put = self._take_new if new else self._take_again
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

    # In the graph. Order: weights in, forward and backward, state out (automatic control dependencies keep reads and
    # writes of a variable in this order).

    def _run(self, batch: Any) -> tuple[Mapping[str, Any], Any, list[Any]]:
        """Run one `train_step`: logs, the loss, one float32 gradient per trained variable (zeros where none).

        Raises FitError where it applies gradients not at all, twice, or to other variables, and where it assigns a
        trained one.
        """
        trained = self._trained
        with (
            self._of.around(),
            watching(trained) as written,
            catching(self._model.optimizer, dense) as caught,
        ):
            logs = self._model.train_step(without_optionals(batch))
        if written:
            raise assigns(written[0].name)
        gradients = [
            tf.cast(tf.zeros_like(variable) if one is None else one, tf.float32)
            for variable, one in zip(trained, caught.of(trained), strict=True)
        ]
        loss = caught.loss if caught.loss is not None else logs.get("loss", float("nan"))
        return logs, tf.cast(loss, tf.float32), gradients

    def _take(self, flats: list[Any]) -> None:
        for variable, value in zip(self._variables, self._layout.cut(flats), strict=True):
            variable.assign(value)

    def _take_new(self, flats: list[Any], version: Any) -> None:
        self._take(flats)
        take_up(self._model.optimizer, version, new=True)

    def _take_again(self, flats: list[Any], version: Any) -> None:
        self._take(flats)
        take_up(self._model.optimizer, version, new=False)

    def _take_and_finish(self, flats: list[Any], batch: Any) -> Any:
        self._take(flats)
        return self._finish(flats, batch)

    def _take_and_add(self, flats: list[Any], batch: Any) -> Any:
        self._take(flats)
        # The contribution before may have ended in an exception.
        for total in self._sums:
            total.assign(tf.zeros(total.shape))
        return self._add(flats, batch)

    def _add(self, flats: list[Any], batch: Any) -> Any:
        logs, loss, gradients = self._objective(batch)
        for total, value in zip(self._sums, [loss, *gradients], strict=True):
            total.assign_add(value)
        return logs

    def _finish(self, flats: list[Any], batch: Any) -> tuple[list[list[Any]], Any, Any, list[Any], Any]:
        logs, loss, gradients = self._objective(batch)
        if self._of.every > 1:
            added = zip(self._sums, [loss, *gradients], strict=True)
            loss, *gradients = [(value + total) / self._of.every for total, value in added]
            for total in self._sums:
                total.assign(tf.zeros(total.shape))
        gradients = self._of.process(gradients, self._known)
        trained = self._of.found.trainable
        moved = zip(self._variables[trained:], self._layout.cut(flats, trained), strict=True)
        deltas = [
            tf.cast(variable.read_value(), tf.float32) - tf.cast(before, tf.float32)
            for variable, before in moved
        ]
        dtypes = [self._dtype or flat.dtype for flat in flats]
        norm = tf.linalg.global_norm(gradients) if self._of.norm else tf.zeros(())
        dense, rows = gradients[:trained], gradients[trained:]
        return self._layout.join([*dense, *deltas], dtypes), loss, norm, rows, logs

    def _same(self, flats: list[Any]) -> Any:
        pairs = zip(self._variables, self._layout.cut(flats), strict=True)
        return tf.stack([equal(variable, value) for variable, value in pairs])


def dense(gradient: Any) -> Any:
    """Apply `tf.convert_to_tensor` without its warning of a variable without a fixed number of rows."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, gradient.dense_shape[0])
    return tf.convert_to_tensor(gradient)


def without_optionals(data: Any) -> Any:
    """Replace an input that is an empty Optional with None, as Keras' own step does."""
    return keras.tree.map_structure(
        lambda leaf: None if isinstance(leaf, tf.experimental.Optional) else leaf, data
    )


def fed(batch: Any, *, open: bool = False) -> Any:
    """Return what the graph gets of a batch. `open`: types instead of rows, of any number of them."""
    if not isinstance(batch, LookedUp):
        return batch
    given = batch.fed()
    if not open:
        return given
    rows = [tf.TensorSpec([None, array.shape[1]], tf.float32) for array in given.rows]
    places = [tf.TensorSpec([None], tf.int32) for _ in given.places]
    return given._replace(rows=tuple(rows), places=tuple(places))


def computation(step: CompiledStep, before: Computation | None = None) -> TensorFlowStep:
    return TensorFlowStep(step, before if isinstance(before, TensorFlowStep) else None)


def train_function(train: Callable[[Iterator[Any]], Any]) -> Callable[..., Any]:
    return train


def keep_state(model: Any) -> dict[str, Callable[..., Any]]:
    return {}


def refuse(model: Any) -> str | None:
    if model._distribute_strategy is not None:
        kind = type(model._distribute_strategy).__name__
        return (
            f"the model was made under TensorFlow's {kind}, which keeps a copy of each variable on each device, and "
            "servers take the place of it: expected a model that is made and compiled outside of strategy.scope(), "
            "and a worker for each device"
        )
    return None
