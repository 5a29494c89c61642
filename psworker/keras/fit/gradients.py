"""A compiled model's own `train_step`, with the optimizer's update taken out: gradients instead of new weights.

`train_step` runs as Keras or the user wrote it (loss, metrics, class and
sample weights, regularisers, loss scale). When it asks the optimizer to apply
gradients, they are caught, processed as Keras would before its update
(unscaled, accumulated, clipped where the server does not) and leave the graph as flat payloads.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pswire.model.plan import Plan
from pswire.transport.wire import wire_named
from psworker.backends import StepResult
from psworker.backends.tensorflow.caught import caught_step
from psworker.backends.tensorflow.flats import FlatLayout, tensor_of
from psworker.backends.tensorflow.step import FlatStep, count_samples
from psworker.backends.tensorflow.variables import ModelVariables
from psworker.keras.fit.sums import MetricSums
from psworker.keras.translate import unwrapped


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
        weights: list[Any] | None = None,
        *,
        clips: bool,
    ) -> None:
        """`sums`: watches the metrics; None where nobody adds them up. `version`: of the weights in the model, and
        `weights`: the payloads that they were made from, as tensors. `clips`: gradients are clipped here, and not by
        the server."""
        self._model = model
        self._sums_of_metrics = sums
        self._variables, self._plan = variables, plan
        self._layout = FlatLayout(plan, variables)
        self._dtype = tensor_of(np.empty(0, wire_named(wire_dtype).array_dtype)).dtype
        self._optimizer = unwrapped(model.optimizer)
        self._every = self._optimizer.gradient_accumulation_steps or 1
        #: The payloads that the model's weights were made from, as tensors; none before the first version.
        self.weights = weights or []
        self._taken = self._samples = 0
        self._version = version
        self._eager, jit = model.run_eagerly, bool(model.jit_compile)
        self._step = FlatStep(
            *(plan, variables, self._objective),
            process=self._optimizer._clip_gradients if clips else list,
            trace=lambda body: self._traced(body, jit),
            every=self._every,
            dtypes=[self._dtype] * len(plan.shards),
            # A dynamic loss scale follows from whether gradients are finite; else servers refuse what is not.
            norm=isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer),
        )
        # By the dtypes of payloads, and whether the version is new.
        self._assigning: dict[tuple[Any, ...], Any] = {}
        self._compare = self._traced(self._same, False)

    def prepare(self, data: Any) -> None:
        """Trace the step for batches such as `data`; nothing runs."""
        self._begin()
        if not self._eager:
            specs = [tf.TensorSpec([shard.elements], self._dtype) for shard in self._plan.shards]
            self._step.trace(specs, data)

    def __call__(self, data: Any) -> tuple[Mapping[str, Any], StepResult | None]:
        """One batch: its logs, and what to contribute; None while gradients are accumulated."""
        self._begin()
        self._samples += count_samples(data)
        if self._taken < self._every - 1:
            self._taken += 1
            return self._step.add(self.weights, data), None
        result = self._step.finish(self.weights, data, self._samples)
        self._taken = self._samples = 0
        return result.logs, result

    def number(self, contribution: int) -> int:
        """Of the next batch, which is of that contribution."""
        return contribution * self._every + self._taken

    def rehearse(self, data: Any) -> None:
        """Run the first batch of this process, and take back all that it changed but the states of random
        generators."""
        self._begin()
        seeds = {id(variable) for variable in self._variables.seeds}
        local = [variable for variable in self._variables.local if id(variable) not in seeds]
        changed = [*self._variables.variables, *local, *self._step.scratch, self._optimizer._iterations.value]
        before = [tf.identity(variable) for variable in changed]
        if self._every == 1:
            self._step.finish(self.weights, data, 0)
        else:
            self._step.add(self.weights, data)
        for variable, value in zip(changed, before, strict=True):
            variable.assign(value)
        self._model.reset_metrics()

    def _begin(self) -> None:
        if self._sums_of_metrics is not None:
            self._sums_of_metrics.begin()

    def assign(self, flats: list[Any], version: int) -> None:
        """Put the payloads of `version` into the model."""
        self.weights = tensors = [tensor_of(flat) for flat in flats]
        # A version that is read again is not averaged again.
        self._assign(tensors, version, new=version > self._version)
        self._version = version

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

    def differing(self, tolerance: float = 0.0) -> str | None:
        """Name a variable that is not what `assign` made it, up to `tolerance`; None when all are."""
        same = self._compare(self.weights, tf.constant(tolerance, tf.float32)).numpy()
        if self._taken:
            # In the middle of an accumulation averages have moved by themselves.
            same = same[: self._variables.trainable]
        return next(
            (spec.name for spec, one in zip(self._variables.specs, same, strict=False) if not one), None
        )

    def restore(self) -> None:
        """Put the present version into the model once more, to the bit. Averages that have moved stay."""
        if not self._taken:
            self._assign(self.weights, self._version, new=False)

    def _traced(self, function: Any, jit: bool) -> Any:
        if self._eager:
            return function
        return tf.function(function, reduce_retracing=True, jit_compile=jit, autograph=False)

    # Traced

    def _objective(self, data: Any) -> tuple[Mapping[str, Any], Any, list[Any]]:
        """Keras' own step: logs, the loss, one gradient per trained variable."""
        trained = self._variables.variables[: self._variables.trainable]
        with nullcontext() if self._sums_of_metrics is None else self._sums_of_metrics.watch():
            return caught_step(self._model, trained, data)

    def _take_new(self, flats: list[Any], version: Any) -> None:
        self._step.take(flats)
        # Keras' averages ask `iterations` whether this is the first update: it is counted behind them.
        self._count(version - 1)
        if self._optimizer.use_ema:
            self._optimizer._update_model_variables_moving_average(self._optimizer._trainable_variables)
        self._count(version)

    def _take(self, flats: list[Any], version: Any) -> None:
        self._step.take(flats)
        self._count(version)

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
