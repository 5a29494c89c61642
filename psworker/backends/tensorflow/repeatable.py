"""Which operations of a step draw from a state that nobody can read, so that no replay can repeat them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from tensorflow.python.framework import op_def_registry

from pswire.logs.events import event
from psworker.backends.tensorflow.variables import ModelVariables

log = logging.getLogger("ps-worker")

# Python functions: what they draw from is their own.
_PYTHON = {"PyFunc", "EagerPyFunc", "PyFuncStateless"}
# A tf.random.Generator, whose state is a variable.
_GENERATOR = "RngReadAndSkip"


def warn_of_sources(graphs: Iterable[Any], model: ModelVariables) -> None:
    """Warn where the steps of `graphs` hold operations of `unrepeatable`."""
    try:
        found = sorted({name for graph in graphs for name in unrepeatable(graph, model)})
    except Exception:
        # A graph whose constants are beyond what protobuf can hold.
        return
    if found:
        log.warning(
            "the step calls %s, whose state is in none of the model's variables: ps-lab replay will not compute these "
            "gradients again to the bit; keras.random with a SeedGenerator is repeated",
            ", ".join(found),
            extra=event("not_repeatable", operations=found),
        )


def unrepeatable(graph: Any, model: ModelVariables) -> set[str]:
    """Return the names of such operations of a FuncGraph, and of the functions that it calls."""
    written = graph.as_graph_def()
    nodes = [*written.node, *(node for function in written.library.function for node in function.node_def)]
    found = {node.op for node in nodes if node.op in _PYTHON or _draws(node.op)}
    kept = {id(variable.handle) for variable in model.local}
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
