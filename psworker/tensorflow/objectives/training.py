"""How a job's model is trained: by the job's own loss, by a Keras loss, or as the model was compiled.

Everything that a model was compiled with is used, or refused.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from psworker.backends.keras import StepError
from psworker.backends.tensorflow.caught import caught_step, dense
from psworker.backends.tensorflow.step import Objective
from psworker.job import Job
from psworker.job.errors import JobError
from psworker.tensorflow.objectives.losses import Loss, check_names, keras_loss, loss_function

# Models that were compiled here with their job's loss, and not by the user.
_COMPILED_HERE: weakref.WeakSet[Any] = weakref.WeakSet()


class Training:
    """The training that a job and its model ask for together. Raises JobError where they contradict each other.

    `optimizer`: the Keras optimizer that the servers are to run, or None where
    nobody named one. `by_train_step`: the model's own `train_step` computes.
    """

    def __init__(self, job: Job, model: Any, optimizer: Any = None) -> None:
        """`optimizer`: compile the model with this one, and not with the job's."""
        self._job, self._model = job, model
        self.compiled = (
            isinstance(model, keras.Model) and bool(model.compiled) and model not in _COMPILED_HERE
        )
        own_step = isinstance(model, keras.Model) and type(model).train_step is not keras.Model.train_step
        if self.compiled:
            self._check_compiled()
        else:
            self._compile(own_step, optimizer)
        self.by_train_step = self.compiled or own_step
        self.optimizer = model.optimizer if self.compiled else _optimizer(job)
        if self.by_train_step and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)

    @property
    def eager(self) -> bool:
        """Whether the model was compiled with `run_eagerly=True`."""
        return self.compiled and bool(self._model.run_eagerly)

    @property
    def jit(self) -> bool:
        """`compile(jit_compile=True)`; Keras' default, "auto", is no here."""
        return self.compiled and self._model._compile_config.config.get("jit_compile") is True

    def objective(self, trained: tuple[Any, ...]) -> Objective:
        """Loss and gradients of `trained`, the model's trainable tf.Variables in order."""
        if self.by_train_step:
            return self._of_train_step(trained)
        return of_loss(loss_function(self._job, self._model), trained)

    def _of_train_step(self, trained: tuple[Any, ...]) -> Objective:
        def objective(batch: Any) -> tuple[dict[str, Any], Any, list[Any]]:
            try:
                _, loss, gradients = caught_step(self._model, trained, batch)
            except StepError as error:
                raise JobError(str(error)) from error
            return {}, loss, gradients

        return objective

    def _check_compiled(self) -> None:
        job, name = self._job, type(self._job).__name__
        for what, given in (("loss", job.loss), ("metrics", job.metrics), ("optimizer", job.optimizer)):
            if given is not None and given != ():
                raise JobError(
                    f"model() of job {name} returned a compiled model, and the job has {what} of its own: leave one of "
                    f"the two out (the model is trained as it was compiled; without compile() the job's {what} counts)"
                )
        # Keras looks names up when it sees the first batch.
        check_names("loss", self._model.loss)
        check_names("metric", getattr(self._model._compile_metrics, "_user_metrics", None))

    def _compile(self, own_step: bool, optimizer: Any) -> None:
        job, model, name = self._job, self._model, type(self._job).__name__
        if job.loss is None:
            raise JobError(
                f"job {name} has no loss: define loss(self, model, batch), loss = a Keras loss, or compile the model "
                "in model()"
            )
        metrics = metrics_given(job)
        check_names("metric", metrics)
        if not isinstance(model, keras.Model):
            return
        if model in _COMPILED_HERE and optimizer is None:
            return
        loss = keras_loss(job)
        if own_step and loss is None:
            raise JobError(
                f"model() of job {name} returned a {type(model).__name__} with a train_step of its own, and the job "
                "has loss(self, model, batch): leave one of the two out (for the train_step, compile the model)"
            )
        check_names("loss", loss)
        if loss is None and not job.metrics and optimizer is None:
            return
        optimizer = optimizer or _optimizer(job) or "sgd"
        model.compile(
            optimizer=optimizer, loss=loss, metrics=metrics, jit_compile=False, auto_scale_loss=False
        )
        _COMPILED_HERE.add(model)


def metrics_given(job: Job) -> Any:
    """Return the job's metrics as Keras' `compile` takes them: a list, or a dict by output."""
    given = job.metrics
    return (
        dict(given)
        if isinstance(given, Mapping)
        else list(given)
        if isinstance(given, list | tuple)
        else [given]
    )


def _optimizer(job: Job) -> Any:
    try:
        return None if job.optimizer is None else keras.optimizers.get(job.optimizer)
    except ValueError as error:
        raise JobError(f"Keras knows no optimizer {job.optimizer!r}, of job {type(job).__name__}") from error


def of_loss(loss: Loss, trained: tuple[Any, ...]) -> Objective:
    """Compute gradients by a tape, dense: zeros for a variable that the loss does not reach, duplicates summed."""

    def objective(batch: Any) -> tuple[dict[str, Any], Any, list[Any]]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(trained)
            value = loss(batch)
        found = tape.gradient(value, trained, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return {}, value, [tf.cast(dense(gradient), tf.float32) for gradient in found]

    return objective
