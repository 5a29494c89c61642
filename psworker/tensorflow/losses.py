"""What a job calls its loss, as one function of the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from psworker.job import Job
from psworker.job.errors import JobError

Loss = Callable[[Any], Any]  # batch -> scalar tensor


def loss_function(job: Job, model: Any) -> Loss:
    """The batch's mean loss as a float32 scalar, with the regularisation losses of a Keras model added.

    See `Job.loss` for its three forms. Raises JobError for a name that Keras
    does not know and for anything that is none of the three; the function
    raises JobError, when it is traced, for a loss that is not one number.
    """
    bare = _bare(job, model)

    def loss(batch: Any) -> Any:
        value = tf.convert_to_tensor(bare(batch))
        if value.shape.rank not in (0, None):
            raise JobError(
                f"the loss of job {type(job).__name__} must be one number, the batch's mean; "
                f"got a tensor of shape {value.shape} (end it with tf.reduce_mean)"
            )
        value = tf.cast(value, tf.float32)
        extra = model.losses if isinstance(model, keras.Layer) else ()
        return tf.add_n([value, *(tf.cast(term, tf.float32) for term in extra)])

    return loss


def is_keras_loss(loss: Any) -> bool:
    """True when `loss` compares targets with predictions, False when it is a function of model and batch."""
    return isinstance(loss, str | keras.losses.Loss)


def _bare(job: Job, model: Any) -> Loss:
    named = job.loss
    if not is_keras_loss(named):
        if not callable(named):
            raise JobError(
                f"the loss of job {type(job).__name__} must be a method loss(self, model, batch), "
                f"a Keras loss or the name of one, got {type(named).__name__} {named!r}"
            )
        own = _converted(named)
        return lambda batch: own(model, batch)
    if not callable(model):
        raise JobError(
            f"job {type(job).__name__} has a Keras loss, which needs a model to call, but model() returned "
            f"{type(model).__name__}: write a method loss(self, model, batch)"
        )
    compare = _keras_loss(named)

    def supervised(batch: Any) -> Any:
        x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
        prediction = model(x, training=True)
        per_sample = compare(y, prediction)
        return tf.reduce_mean(per_sample) if weight is None else compare(y, prediction, weight)

    return supervised


def _converted(function: Any) -> Any:
    """The user's own function with Python's `if` and `while` on tensors understood (AutoGraph).

    Only theirs: everything else of the step is traced as it stands, so that
    errors keep their types and tracebacks show the user's lines.
    """
    autograph = tf.__internal__.autograph
    return autograph.tf_convert(function, autograph.control_status_ctx())


def _keras_loss(named: Any) -> Any:
    """A Keras loss object; a name means the one with Keras' defaults."""
    if isinstance(named, keras.losses.Loss):
        return named
    try:
        found = keras.losses.get(named)
    except ValueError as error:
        raise JobError(f"Keras knows no loss named {named!r}") from error
    return found if isinstance(found, keras.losses.Loss) else PerSample(found)


class PerSample(keras.losses.Loss):
    """A loss object around one of Keras' per-sample loss functions."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self._function = function

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self._function(y_true, y_pred)
