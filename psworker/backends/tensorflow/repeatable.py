"""Which operations of a step draw from a state that nobody can read, so that no replay can repeat them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tensorflow.python.framework import op_def_registry

from psworker.backends.keras.variables import native

# Python functions: what they draw from is their own.
_PYTHON = {"PyFunc", "EagerPyFunc", "PyFuncStateless"}
# A tf.random.Generator, whose state is a variable.
_GENERATOR = "RngReadAndSkip"


def unrepeatable(graphs: Iterable[Any], known: Iterable[Any]) -> list[str]:
    """Return the names of such operations of FuncGraphs, and of the functions that they call. `known`: variables whose
    values a replay has."""
    kept = {id(native(variable).handle) for variable in known}
    try:
        return sorted({name for graph in graphs for name in _found(graph, kept)})
    except Exception:
        # A graph whose constants are beyond what protobuf can hold.
        return []


def _found(graph: Any, kept: set[int]) -> set[str]:
    written = graph.as_graph_def()
    nodes = [*written.node, *(node for function in written.library.function for node in function.node_def)]
    found = {node.op for node in nodes if node.op in _PYTHON or _draws(node.op)}
    outside = [each for each in graph.variables if each.dtype.is_integer and id(each.handle) not in kept]
    if outside and any(node.op == _GENERATOR for node in nodes):
        found.add("tf.random.Generator")
    return found


def _draws(name: str) -> bool:
    """Whether it is a random operation with a state of its own, as `tf.random.normal` makes."""
    if not any(word in name for word in ("Random", "Truncated", "Multinomial")):
        return False
    definition = op_def_registry.get(name)
    return definition is not None and definition.is_stateful
