"""A Keras model's own `train_step`, with the optimizer's update taken out: gradients instead of new weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from psworker.errors import Unsupported

_WRITES = ("Assign", "ResourceApply", "ResourceSparseApply", "ResourceScatter", "ResourceStridedSliceAssign")
# Of an operation that calls functions (a loop, a branch, another tf.function): its inputs that they only read.
_READ_ONLY = "_read_only_resource_inputs"


@contextmanager
def watching(variables: Sequence[Any]) -> Iterator[list[Any]]:
    """Collects those of `variables`, tf.Variables, that are written while it lasts: in a graph by what is traced,
    eagerly by their values. The list is complete at the end."""
    found: list[Any] = []
    eager = tf.executing_eagerly()
    before = [variable.numpy() for variable in variables] if eager else []
    # The caller may have written the weights themselves in the same graph.
    graph = None if eager else tf.compat.v1.get_default_graph()
    earlier = set() if graph is None else {operation.name for operation in graph.get_operations()}
    yield found
    if graph is None:
        pairs = zip(variables, before, strict=True)
        found += [variable for variable, value in pairs if variable.numpy().tobytes() != value.tobytes()]
        return
    inner = {id(outer): inside for outer, inside in graph.captures}
    handles = ((variable, inner.get(id(variable.handle))) for variable in variables)
    found += [variable for variable, handle in handles if handle is not None and _written(handle, earlier)]


def _written(handle: Any, earlier: set[str]) -> bool:
    new = (operation for operation in handle.consumers() if operation.name not in earlier)
    return any(_writes(operation, handle) for operation in new)


def _writes(operation: Any, handle: Any) -> bool:
    if operation.type.startswith(_WRITES):
        return True
    try:
        read_only = operation.get_attr(_READ_ONLY)
    except ValueError:
        return False
    return any(one is handle and at not in read_only for at, one in enumerate(operation.inputs))


class StepError(Unsupported, RuntimeError):
    """A `train_step` that cannot be run on parameter servers; the text says what it would have to do."""


@dataclass
class Caught:
    """What `train_step` gave its optimizer: a gradient by id of its tf.Variable; the loss, before any scaling."""

    gradients: dict[int, Any] = field(default_factory=dict)
    loss: Any = None
    # Variables that were read after their gradient was applied: by then plain Keras has new values.
    stale: list[Any] = field(default_factory=list)


def caught_step(model: Any, trained: Sequence[Any], data: Any) -> tuple[Mapping[str, Any], Any, list[Any]]:
    """One `train_step`: logs, the loss, one float32 gradient per variable of `trained` (zeros where none).

    Raises StepError where it applies gradients not at all, twice, or to other variables, and where it assigns one of
    `trained`, or reads one behind its update.
    """
    with watching(trained) as written, catching(model.optimizer) as caught:
        logs = model.train_step(without_optionals(data))
    if written:
        raise StepError(
            f"train_step, or a layer in it, assigns a value to {written[0].name!r}, which is "
            "trained: on parameter servers the next version overwrites it. Use a regularizer or weight_decay "
            "instead, and trainable=False for a copy that is not trained"
        )
    if caught.stale:
        raise StepError(
            f"train_step reads {caught.stale[0].name!r} after it has applied the gradients, and parameter servers make "
            "the new weights after the step: do at the beginning of train_step, where they are in the model, what you "
            "do with them (a mean teacher or a target network then follows them as before)"
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
    return logs, tf.cast(loss, tf.float32), gradients


@contextmanager
def catching(optimizer: Any) -> Iterator[Caught]:
    """While it lasts, `optimizer.apply` and `apply_gradients` keep what they are given instead of updating."""
    caught = Caught()
    scaling = optimizer.scale_loss
    # Of each apply, from there to the end: they see which variables are read.
    behind = ExitStack()
    tapes: list[tuple[Any, set[int]]] = []

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
        # As Keras counts; what the version says comes in its place.
        (optimizer.inner_optimizer if _scales(optimizer) else optimizer)._iterations.assign_add(1)
        tapes.append((behind.enter_context(tf.GradientTape()), set(caught.gradients)))

    def scale_loss(loss: Any) -> Any:
        caught.loss = loss
        return scaling(loss)

    own = {"apply": apply, "scale_loss": scale_loss}
    for name, function in own.items():
        object.__setattr__(optimizer, name, function)
    try:
        with behind:
            yield caught
        for tape, applied in tapes:
            caught.stale += [variable for variable in tape.watched_variables() if id(variable) in applied]
    finally:
        for name in own:
            object.__delattr__(optimizer, name)


def _scale(optimizer: Any) -> Any:
    """What the loss was multiplied by; None for nothing."""
    return optimizer.dynamic_scale if _scales(optimizer) else optimizer.loss_scale_factor


def _scales(optimizer: Any) -> bool:
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def without_optionals(data: Any) -> Any:
    """As Keras' own step: an input that is an empty Optional is None."""
    return keras.tree.map_structure(
        lambda leaf: None if isinstance(leaf, tf.experimental.Optional) else leaf, data
    )
