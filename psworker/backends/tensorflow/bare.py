"""A job's own function of model and batch, as a Keras model: its `train_step` computes that loss."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from psworker.backends import ModelError
from psworker.backends.keras.variables import native
from psworker.backends.tensorflow.variables import collect, layers_of


class Bare(keras.Model):
    """A model of any kind, trained by ``loss(model, batch)`` of job `name`. Raises ModelError as `collect`."""

    def __init__(self, loss: Callable[[Any, Any], Any], model: Any, name: str) -> None:
        super().__init__()
        found = collect(model)
        trained = [native(variable) for variable in found.variables[: found.trainable]]
        known = {id(variable) for variable in trained}
        # Python's `if` and `while` on tensors are understood (AutoGraph). Only that: everything else of the step is
        # traced as it stands, so that errors keep their types and tracebacks show the user's lines.
        autograph = tf.__internal__.autograph
        converted = autograph.tf_convert(loss, autograph.control_status_ctx())

        def compute(batch: Any) -> Any:
            value = tf.convert_to_tensor(converted(model, batch))
            if value.shape.rank not in (0, None):
                raise ModelError(
                    f"the loss of job {name} must be one number, the batch's mean; got a tensor of shape "
                    f"{value.shape} (end it with tf.reduce_mean)"
                )
            extra = model.losses if isinstance(model, keras.Layer) else ()
            return tf.add_n([tf.cast(term, tf.float32) for term in (value, *extra)])

        def variables() -> list[Any]:
            """Those of the model, and rows of tables, which a step adds to its layers."""
            every = map(native, self.trainable_variables)
            return [*trained, *(each for each in every if id(each) not in known)]

        self.compute, self.variables_now = compute, variables
        # Keras lists what they look up.
        self.inner = layers_of(model)

    def train_step(self, batch: Any) -> Any:
        """Compute the loss, with the regularisation of a Keras model, and its gradients."""
        variables = self.variables_now()
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            loss = self.optimizer.scale_loss(self.compute(batch))
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {}


def bare(loss: Callable[[Any, Any], Any], model: Any, name: str) -> Bare:
    return Bare(loss, model, name)


def save(model: Any, path: Path) -> bool:
    """Write what is no Keras model, but a `tf.Module`, as a SavedModel; False for anything else."""
    if not isinstance(model, tf.Module):
        return False
    tf.saved_model.save(model, str(path))
    return True
