"""A job's loss, in whichever form the job gives it, as one function of the batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from pswire.nearest import did_you_mean
from psworker.job import Job
from psworker.job.errors import JobError

Loss = Callable[[Any], Any]  # batch -> scalar tensor

# What Keras' compile takes beside the names that it looks up.
_METRIC_WORDS = ("accuracy", "acc", "crossentropy", "ce")


def keras_loss(job: Job) -> Any:
    """Return the job's loss as `compile(loss=...)` takes it; None where it is a function of model and batch.

    A name, a Keras loss, a function of (y_true, y_pred), or a list or dict of these, one for each output.
    """
    named = job.loss
    if isinstance(named, str | keras.losses.Loss | dict | list | tuple):
        return named
    if not callable(named):
        return None
    if not inspect.ismethod(named):
        # Put on the instance: loss(model, batch), or a function of targets and predictions.
        return None if _needed(named)[:1] == ["model"] else named
    needed = _needed(named.__func__)
    if needed[:1] == ["self"]:
        return None
    # A plain function that was made an attribute of the class, such as keras.losses.binary_crossentropy.
    return named.__func__ if len(needed) == 2 else None


def _needed(function: Any) -> list[str]:
    """Names of the arguments that have to be given; none for what does not tell its arguments."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.default is inspect.Parameter.empty and p.kind in plain]


def check_names(kind: str, named: Any) -> None:
    """Raise JobError for a name, however deep in lists and dicts, under which Keras knows no loss or metric."""
    known = keras.losses if kind == "loss" else keras.metrics
    for name in tf.nest.flatten(named):
        if not isinstance(name, str) or (kind == "metric" and name in _METRIC_WORDS):
            continue
        try:
            known.get(name)
        except ValueError as error:
            names = [word for word in dir(known) if not word.startswith("_")]
            hint = did_you_mean(name, [*names, *_METRIC_WORDS] if kind == "metric" else names)
            raise JobError(f"Keras knows no {kind} named {name!r}{hint}") from error


def loss_function(job: Job, model: Any) -> Loss:
    """Return the batch's mean loss as a float32 scalar, with the regularisation losses of a Keras model added.

    A Keras model with a Keras loss has been compiled with it. Raises JobError
    for anything that is no loss; the function raises JobError, when it is
    traced, for a loss that is not one number.
    """
    named = keras_loss(job)
    if named is not None and isinstance(model, keras.Model):
        return _compiled(job, model)
    bare = _of_batch(job) if named is None else _of_predictions(job, named, model)

    def loss(batch: Any) -> Any:
        value = _one_number(job, bare(model, batch))
        extra = model.losses if isinstance(model, keras.Layer) else ()
        return tf.add_n([value, *(tf.cast(term, tf.float32) for term in extra)])

    return loss


def _compiled(job: Job, model: Any) -> Loss:
    """Compute the loss as Keras does: shapes brought together, weights of samples and outputs, a sum over outputs."""

    def loss(batch: Any) -> Any:
        x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
        prediction = model(x, training=True)
        return _one_number(job, model.compute_loss(x, y, prediction, weight, training=True))

    return loss


def _one_number(job: Job, value: Any) -> Any:
    value = tf.convert_to_tensor(value)
    if value.shape.rank not in (0, None):
        raise JobError(
            f"the loss of job {type(job).__name__} must be one number, the batch's mean; "
            f"got a tensor of shape {value.shape} (end it with tf.reduce_mean)"
        )
    return tf.cast(value, tf.float32)


def _of_batch(job: Job) -> Callable[[Any, Any], Any]:
    """Return the job's own function, with Python's `if` and `while` on tensors understood (AutoGraph).

    Only that: everything else of the step is traced as it stands, so that
    errors keep their types and tracebacks show the user's lines.
    """
    if not callable(job.loss):
        raise JobError(
            f"the loss of job {type(job).__name__} must be a method loss(self, model, batch), a Keras loss, the "
            f"name of one, or a function of y_true and y_pred; got {type(job.loss).__name__} {job.loss!r}"
        )
    if inspect.ismethod(job.loss) and len(_needed(job.loss)) == 1:
        raise JobError(f"the loss of job {type(job).__name__} must be a method loss(self, model, batch)")
    autograph = tf.__internal__.autograph
    converted: Callable[[Any, Any], Any] = autograph.tf_convert(job.loss, autograph.control_status_ctx())
    return converted


def _of_predictions(job: Job, named: Any, model: Any) -> Callable[[Any, Any], Any]:
    """Return a Keras loss of something that is called like a model, and is no Keras model."""
    if not callable(model):
        raise JobError(
            f"job {type(job).__name__} has a Keras loss, which needs a model to call, but model() returned "
            f"{type(model).__name__}: write a method loss(self, model, batch)"
        )
    if isinstance(named, dict | list | tuple):
        raise JobError(
            f"job {type(job).__name__} has a loss for each output, which needs a keras.Model, but model() returned "
            f"{type(model).__name__}: write a method loss(self, model, batch)"
        )
    check_names("loss", named)
    found = keras.losses.get(named)
    compare = found if isinstance(found, keras.losses.Loss) else PerSample(found)

    def supervised(model: Any, batch: Any) -> Any:
        x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
        return compare(y, model(x, training=True), weight)

    return supervised


class PerSample(keras.losses.Loss):
    """A loss object around one of Keras' per-sample loss functions."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self._function = function

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self._function(y_true, y_pred)
