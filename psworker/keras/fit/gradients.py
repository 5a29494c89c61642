"""A compiled model's own `train_step`, with the optimizer's update taken out: gradients instead of new weights.

`train_step` runs as Keras or the user wrote it (loss, metrics, class and
sample weights, regularisers, loss scale). When it asks the optimizer to apply
gradients, they are caught, processed as Keras would before its update
(unscaled, accumulated, clipped where the server does not) and leave the graph as flat payloads.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pswire.model.plan import Plan
from pswire.transport.wire import wire_named
from psworker.data.payloads import Payload
from psworker.keras.fit.sums import MetricSums
from psworker.keras.translate import unwrapped
from psworker.tensorflow.casts import payload_of, tensor_of
from psworker.tensorflow.flats import FlatLayout
from psworker.tensorflow.objectives.caught import caught_step
from psworker.tensorflow.step import count_samples
from psworker.tensorflow.variables import ModelVariables


@dataclass(frozen=True)
class BatchResult:
    """What one batch gave. `payloads`: None while gradients are accumulated."""

    logs: Mapping[str, Any]
    payloads: list[Payload] | None
    loss: float
    # Of the gradient; None where nothing here depends on it: servers refuse what is not finite, and say where.
    norm: float | None
    samples: int


class GradientStep:
    """One batch on the model's present weights, and new weights into the model; two traced functions."""

    def __init__(
        self,
        model: Any,
        variables: ModelVariables,
        plan: Plan,
        wire_dtype: str,
        sums: MetricSums | None,
        version: int = 0,
        *,
        clips: bool,
    ) -> None:
        """`sums`: watches the metrics; None where nobody adds them up. `version`: of the weights in the model.
        `clips`: gradients are clipped here, and not by the server."""
        self._model = model
        self._sums_of_metrics = sums
        self._variables = variables
        self._layout = FlatLayout(plan, variables)
        self._dtypes = [tensor_of(np.empty(0, wire_named(wire_dtype).array_dtype)).dtype] * len(plan.shards)
        self._optimizer = unwrapped(model.optimizer)
        self._every = self._optimizer.gradient_accumulation_steps or 1
        # Sums over the batches of one update, of gradients and of how averages have moved.
        self._sums = (
            [tf.Variable(tf.zeros(v.shape), trainable=False) for v in variables.variables]
            if self._every > 1
            else []
        )
        self._clips = clips
        self._taken = self._samples = 0
        self._version = version
        # A dynamic loss scale follows from whether gradients are finite.
        self._scales = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        self._eager = model.run_eagerly
        jit = bool(model.jit_compile)
        self._compute = self._traced(self._gradients, jit)
        self._gather = self._traced(self._accumulate, jit)
        # By the dtypes of payloads, and whether the version is new.
        self._assigning: dict[tuple[Any, ...], Any] = {}
        self._compare = self._traced(self._same, False)

    def prepare(self, data: Any) -> None:
        """Trace the step for batches such as `data`; nothing runs."""
        self._begin()
        if not self._eager:
            self._function().get_concrete_function(data)

    def __call__(self, data: Any) -> BatchResult:
        self._begin()
        last = self._taken == self._every - 1
        self._samples += count_samples(data)
        if not last:
            logs = self._gather(data)
            self._taken += 1
            return BatchResult(logs, None, float("nan"), None, self._samples)
        logs, flats, loss, norm = self._compute(data)
        samples, self._taken, self._samples = self._samples, 0, 0
        payloads = [payload_of(parts) for parts in flats]
        return BatchResult(logs, payloads, float(loss), None if norm is None else float(norm), samples)

    def number(self, contribution: int) -> int:
        """Of the next batch, which is of that contribution."""
        return contribution * self._every + self._taken

    def rehearse(self, data: Any) -> None:
        """Run the first batch of this process, and take back all that it changed but the states of random
        generators."""
        self._begin()
        seeds = {id(variable) for variable in self._variables.seeds}
        local = [variable for variable in self._variables.local if id(variable) not in seeds]
        changed = [*self._variables.variables, *local, *self._sums, self._optimizer._iterations.value]
        before = [tf.identity(variable) for variable in changed]
        self._function()(data)
        for variable, value in zip(changed, before, strict=True):
            variable.assign(value)
        self._model.reset_metrics()

    def _begin(self) -> None:
        if self._sums_of_metrics is not None:
            self._sums_of_metrics.begin()

    def assign(self, flats: list[Any], version: int) -> list[Any]:
        """Payloads of `version` into the model. Returns them as tensors."""
        tensors = [tensor_of(flat) for flat in flats]
        # A version that is read again is not averaged again.
        self._assign(tensors, version, new=version > self._version)
        self._version = version
        return tensors

    def _assign(self, tensors: list[Any], version: int, *, new: bool) -> None:
        """By the one concrete function for such payloads: to find it anew takes longer than what it does."""
        key = (new, *(tensor.dtype for tensor in tensors))
        assign = self._assigning.get(key)
        if assign is None:
            assign = self._take_new if new else self._take
            if not self._eager:
                specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]
                traced = tf.function(assign, autograph=False)
                assign = traced.get_concrete_function(specs, tf.TensorSpec([], tf.int64))
            self._assigning[key] = assign
        assign(tensors, tf.constant(version, tf.int64))

    def differing(self, tensors: list[Any], tolerance: float = 0.0) -> str | None:
        """The path of a variable that is not what `assign` made it from `tensors`, up to `tolerance`; None when all
        are."""
        same = self._compare(tensors, tf.constant(tolerance, tf.float32)).numpy()
        if self._taken:
            # In the middle of an accumulation averages have moved by themselves.
            same = same[: self._variables.trainable]
        return next(
            (spec.name for spec, one in zip(self._variables.specs, same, strict=False) if not one), None
        )

    def restore(self, tensors: list[Any]) -> None:
        """What `assign` returned into the model once more, to the bit. Averages that have moved stay."""
        if not self._taken:
            self._assign(tensors, self._version, new=False)

    def _function(self) -> Any:
        return self._compute if self._every == 1 else self._gather

    def _traced(self, function: Any, jit: bool) -> Any:
        if self._eager:
            return function
        return tf.function(function, reduce_retracing=True, jit_compile=jit, autograph=False)

    # Traced

    def _run(self, data: Any) -> tuple[Any, list[Any], list[Any], Any]:
        """Keras' own step: logs, one float32 gradient per trained variable (zeros where none), by how much each other
        variable has moved, the loss."""
        trained = self._variables.variables[: self._variables.trainable]
        state = self._variables.variables[self._variables.trainable :]
        before = [tf.identity(variable.read_value()) for variable in state]
        with nullcontext() if self._sums_of_metrics is None else self._sums_of_metrics.watch():
            logs, gradients, loss = caught_step(self._model, trained, data)
        deltas = [
            tf.cast(variable.read_value(), tf.float32) - tf.cast(value, tf.float32)
            for variable, value in zip(state, before, strict=True)
        ]
        return logs, gradients, deltas, loss

    def _accumulate(self, data: Any) -> Any:
        logs, gradients, deltas, _ = self._run(data)
        for total, one in zip(self._sums, [*gradients, *deltas], strict=True):
            total.assign(one + total)
        return logs

    def _gradients(self, data: Any) -> tuple[Any, list[list[Any]], Any, Any]:
        logs, gradients, deltas, loss = self._run(data)
        if self._every > 1:
            steps, trained = self._optimizer.gradient_accumulation_steps, len(gradients)
            gradients = [
                (g + total) / steps for g, total in zip(gradients, self._sums[:trained], strict=True)
            ]
            deltas = [moved + total for moved, total in zip(deltas, self._sums[trained:], strict=True)]
            for total in self._sums:
                total.assign(tf.zeros(total.shape))
        if self._clips:
            gradients = self._optimizer._clip_gradients(gradients)
        norm = tf.linalg.global_norm(gradients) if self._scales else None
        return logs, self._layout.join([*gradients, *deltas], self._dtypes), loss, norm

    def _take_new(self, flats: list[Any], version: Any) -> None:
        self._place(flats)
        # Keras' averages ask `iterations` whether this is the first update: it is counted behind them.
        self._count(version - 1)
        if self._optimizer.use_ema:
            self._optimizer._update_model_variables_moving_average(self._optimizer._trainable_variables)
        self._count(version)

    def _take(self, flats: list[Any], version: Any) -> None:
        self._place(flats)
        self._count(version)

    def _place(self, flats: list[Any]) -> None:
        for variable, value in zip(self._variables.variables, self._layout.cut(flats), strict=True):
            variable.assign(value)

    def _count(self, version: Any) -> None:
        # Keras counts batches here; the property `iterations` counts updates.
        self._optimizer._iterations.assign(version * self._every)

    def _same(self, flats: list[Any], tolerance: Any) -> Any:
        """Of each variable: it is what `flats` say, or as near as `tolerance`, relative to 1 or to what they say."""
        found = []
        for variable, value in zip(self._variables.variables, self._layout.cut(flats), strict=True):
            wanted = tf.cast(value, tf.float32)
            away = tf.abs(tf.cast(variable, tf.float32) - wanted)
            near = away <= tolerance * tf.maximum(1.0, tf.abs(wanted))
            # NaN is near nothing.
            found.append(tf.reduce_all(tf.logical_or(tf.equal(variable, value), near)))
        return tf.stack(found)
