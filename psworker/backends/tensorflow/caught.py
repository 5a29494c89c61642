"""A Keras model's own `train_step`, with the optimizer's update taken out: gradients instead of new weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import tensorflow as tf

from psworker.backends.keras.step import Caught, assigns, catching, reads_behind

_WRITES = ("Assign", "ResourceApply", "ResourceSparseApply", "ResourceScatter", "ResourceStridedSliceAssign")
# Of an operation that calls functions (a loop, a branch, another tf.function): its inputs that they only read.
_READ_ONLY = "_read_only_resource_inputs"


@contextmanager
def watching(variables: Sequence[Any]) -> Iterator[list[Any]]:
    """Collect those of `variables`, tf.Variables, that are written while it lasts: in a graph by what is traced,
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


def caught_step(model: Any, trained: Sequence[Any], data: Any) -> tuple[Mapping[str, Any], Any, list[Any]]:
    """One `train_step`: logs, the loss, one float32 gradient per variable of `trained` (zeros where none).

    Raises FitError where it applies gradients not at all, twice, or to other variables, and where it assigns one of
    `trained`, or reads one behind its update.
    """
    # From the first application to the end, tapes see which variables are read.
    behind = ExitStack()
    tapes: list[tuple[Any, set[int]]] = []

    def applied(caught: Caught) -> None:
        tapes.append((behind.enter_context(tf.GradientTape()), set(caught.gradients)))

    with (
        watching(trained) as written,
        behind,
        catching(model.optimizer, dense, applied) as caught,
    ):
        logs = model.train_step(without_optionals(data))
    if written:
        raise assigns(written[0].name)
    for tape, known in tapes:
        for variable in tape.watched_variables():
            if id(variable) in known:
                raise reads_behind(variable.name)
    gradients = [
        tf.cast(tf.zeros_like(variable) if one is None else one, tf.float32)
        for variable, one in zip(trained, caught.of(trained), strict=True)
    ]
    loss = caught.loss if caught.loss is not None else logs.get("loss", float("nan"))
    return logs, tf.cast(loss, tf.float32), gradients


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
