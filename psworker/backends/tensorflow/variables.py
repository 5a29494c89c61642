"""Variables of what a job may return as its model on TensorFlow: a Keras model, a `tf.Module`, a nest of variables."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from psworker.backends import ModelError
from psworker.backends.keras import variables as of_keras
from psworker.backends.keras.variables import KerasVariables, Kind, assorted, kept_outside, variables_of


def collect(model: Any) -> KerasVariables:
    """Collect the variables of a Keras model or layer, a `tf.Module`, or any nest of lists, tuples, dicts and objects
    that holds `tf.Variable`s.

    Names in a Keras model are those of `stable_names`, else the way to
    the variable ("layers/0/w"); equal names get "#1", "#2", ... in order. Raises ModelError when nothing in it can
    be trained, when a Keras model is not built, and on shapes with unknown sizes.
    """
    if isinstance(model, keras.Layer):
        return of_keras.collect(model)
    found = list(_walk(model, "", set()))
    for name, variable, _ in found:
        if isinstance(variable, tf.Variable) and not variable.shape.is_fully_defined():
            raise ModelError(f"variable {name!r} has the shape {variable.shape}: every size must be known")
    return assorted(f"a model of type {type(model).__name__}", found, _outside(model))


def layers_of(node: Any, inside: frozenset[int] = frozenset()) -> list[Any]:
    """List the outermost layers at or below `node`, a model as for `collect`, each once."""
    if isinstance(node, keras.Layer):
        return [node]
    if id(node) in inside or isinstance(node, tf.Variable | keras.Variable):
        return []
    found = [layers_of(child, inside | {id(node)}) for _, child in _children(node)]
    return list({id(layer): layer for several in found for layer in several}.values())


def _outside(node: Any) -> list[tuple[str, Any]]:
    """(name, variable) of what the layers at or below `node` keep and Keras does not list: a stateful RNN's states."""
    found = [pair for layer in layers_of(node) for pair in kept_outside(layer)]
    return list({id(each): (name, each) for name, each in found}.values())


def _walk(node: Any, path: str, inside: set[int]) -> Iterator[tuple[str, Any, Kind]]:
    """Every variable at or below `node`, with its name; `inside` holds the ids on the way (no cycles)."""
    if isinstance(node, keras.Layer):
        prefix = f"{path}/" if path else ""
        yield from ((prefix + name, variable, kind) for name, variable, kind in variables_of(node))
    elif isinstance(node, keras.Variable):
        yield path or node.path, node, "trainable" if node.trainable else "state"
    elif isinstance(node, tf.Variable):
        yield path or node.name.split(":")[0], node, "trainable" if node.trainable else "state"
    elif id(node) not in inside:
        for name, child in _children(node):
            yield from _walk(child, f"{path}/{name}" if path else name, inside | {id(node)})


def _children(node: Any) -> list[tuple[str, Any]]:
    """Named parts of a container or object, in an order that does not change between processes."""
    if isinstance(node, Mapping):
        return [(str(key), value) for key, value in node.items()]
    if isinstance(node, list | tuple):
        return [(str(index), value) for index, value in enumerate(node)]
    if inspect.ismodule(node) or inspect.isclass(node) or inspect.isroutine(node) or _is_library_object(node):
        return []
    parts: dict[str, Any] = getattr(node, "__dict__", {})
    return [(name, value) for name, value in parts.items() if not name.startswith("_self_")]


def _is_library_object(node: Any) -> bool:
    """Datasets, scopes and the like: no variables of the model are in them, and they are large."""
    return not isinstance(node, tf.Module) and type(node).__module__.startswith(("tensorflow.", "keras."))
