"""A Keras model's own `train_step`, with the optimizer's update taken out: gradients instead of new weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from psworker.errors import Unsupported
from psworker.tensorflow.objectives.written import watching


class StepError(Unsupported, RuntimeError):
    """A `train_step` that cannot be run on parameter servers; the text says what it would have to do."""


@dataclass
class Caught:
    """What `train_step` gave its optimizer: a gradient by id of its tf.Variable; the loss, before any scaling."""

    gradients: dict[int, Any] = field(default_factory=dict)
    loss: Any = None


def caught_step(model: Any, trained: Sequence[Any], data: Any) -> tuple[Mapping[str, Any], list[Any], Any]:
    """One `train_step`: logs, one float32 gradient per variable of `trained` (zeros where none), the loss.

    Raises StepError where it applies gradients not at all, twice, or to other variables, or assigns one of `trained`.
    """
    with watching(trained) as written, catching(model.optimizer) as caught:
        logs = model.train_step(without_optionals(data))
    if written:
        raise StepError(
            f"train_step, or a layer in it, assigns a value to {written[0].name!r}, which is "
            "trained: on parameter servers the next version overwrites it. Use a regularizer or weight_decay "
            "instead, and trainable=False for a copy that is not trained"
        )
    if not caught.gradients:
        raise StepError(
            "train_step applied no gradients with model.optimizer: a model that is distributed ends its step with "
            "self.optimizer.apply(gradients, variables), once"
        )
    if not caught.gradients.keys() <= {id(variable) for variable in trained}:
        raise StepError(
            "train_step applied a gradient to a variable that is not in model.trainable_variables"
        )
    found = [caught.gradients.get(id(variable)) for variable in trained]
    gradients = [
        tf.zeros(variable.shape) if one is None else tf.cast(tf.convert_to_tensor(one), tf.float32)
        for variable, one in zip(trained, found, strict=True)
    ]
    loss = caught.loss if caught.loss is not None else logs.get("loss", float("nan"))
    return logs, gradients, tf.cast(loss, tf.float32)


@contextmanager
def catching(optimizer: Any) -> Iterator[Caught]:
    """While it lasts, `optimizer.apply` and `apply_gradients` keep what they are given instead of updating."""
    caught = Caught()
    scaling = optimizer.scale_loss

    def apply(grads: Any, trainable_variables: Any = None) -> None:
        variables = optimizer._trainable_variables if trainable_variables is None else trainable_variables
        scale = _scale(optimizer)
        for gradient, variable in zip(grads, variables, strict=True):
            key = id(variable.value if isinstance(variable, keras.Variable) else variable)
            if key in caught.gradients:
                raise StepError(
                    "train_step applied gradients to one variable twice: on parameter servers a batch is one update; "
                    "add the gradients up and apply them once"
                )
            if gradient is not None:
                gradient = tf.convert_to_tensor(gradient)
                caught.gradients[key] = (
                    gradient if scale is None else gradient / tf.cast(scale, gradient.dtype)
                )

    def scale_loss(loss: Any) -> Any:
        caught.loss = loss
        return scaling(loss)

    own = {"apply": apply, "scale_loss": scale_loss}
    for name, function in own.items():
        object.__setattr__(optimizer, name, function)
    try:
        yield caught
    finally:
        for name in own:
            object.__delattr__(optimizer, name)


def _scale(optimizer: Any) -> Any:
    """What the loss was multiplied by; None for nothing."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return optimizer.dynamic_scale
    return optimizer.loss_scale_factor


def without_optionals(data: Any) -> Any:
    """As Keras' own step: an input that is an empty Optional is None."""
    return keras.tree.map_structure(
        lambda leaf: None if isinstance(leaf, tf.experimental.Optional) else leaf, data
    )
