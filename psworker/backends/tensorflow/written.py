"""Which variables a step writes: in a graph by what is traced, eagerly by their values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

_WRITES = ("Assign", "ResourceApply", "ResourceSparseApply", "ResourceScatter", "ResourceStridedSliceAssign")
# Of an operation that calls functions (a loop, a branch, another tf.function): its inputs that they only read.
_READ_ONLY = "_read_only_resource_inputs"


@contextmanager
def watching(variables: Sequence[Any]) -> Iterator[list[Any]]:
    """Collect those of `variables`, tf.Variables, that are written while it lasts. The list is complete at the end."""
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
