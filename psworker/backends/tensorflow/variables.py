"""A model's variables, found, named and ordered the same way in every worker.

Floating variables travel: those the optimizer trains as "trainable", the others
(BatchNorm's moving averages, frozen layers) as "state". What is not floating
(counters, seeds of random generators), and the states of a stateful RNN, stay local to the worker.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pswire.model.plan import VariableSpec
from psworker.backends import ModelError
from psworker.backends.keras import Kind, finite, kept_outside, native, unique, variables_of
from psworker.backends.lookups import remote_of
from psworker.job.errors import JobError

_SEED = "seed_generator_state"


@dataclass(frozen=True)
class ModelVariables:
    """The travelling variables, trainable ones first; `specs[i]` describes `variables[i]`."""

    specs: tuple[VariableSpec, ...]
    variables: tuple[Any, ...]  # tf.Variable
    local: tuple[Any, ...]  # tf.Variables that do not travel
    seeds: tuple[Any, ...]  # those of them that are the state of Keras' random generators
    constants: tuple[tuple[str, Any], ...] = ()  # those that are floating, and not finite

    @property
    def trainable(self) -> int:
        """How many of them are trained."""
        return sum(spec.kind == "trainable" for spec in self.specs)

    def values(self) -> list[np.ndarray]:
        """Present values as float32 arrays, in order."""
        return [np.asarray(variable.numpy(), dtype=np.float32) for variable in self.variables]

    def assign(self, arrays: list[np.ndarray]) -> None:
        """Set every variable from a float32 array of its shape, cast to its own dtype."""
        for variable, array in zip(self.variables, arrays, strict=True):
            variable.assign(tf.cast(array, variable.dtype))


def collect(model: Any) -> ModelVariables:
    """Collect the variables of a Keras model or layer, a `tf.Module`, or any nest of lists, tuples, dicts and objects
    that holds `tf.Variable`s; a variable reached twice counts once.

    Names in a Keras model are those of `stable_names`, else the way to
    the variable ("layers/0/w"); equal names get "#1", "#2", ... in order. Raises JobError when nothing in it can
    be trained, when a Keras model is not built, and on shapes with unknown sizes.
    """
    found: list[tuple[str, Any, Kind]] = []
    local: list[tuple[str, Any]] = []
    constants: list[tuple[str, Any]] = []
    seen: set[int] = set()
    for name, variable, kind in _walk(model, "", set()):
        if id(variable) in seen:
            continue
        seen.add(id(variable))
        if variable.dtype.is_floating and kind == "state" and not finite(variable.numpy()):
            # A mask with -inf. Servers hold finite numbers, and every worker has made it alike.
            constants.append((name, variable))
            local.append((name, variable))
        elif variable.dtype.is_floating:
            found.append((name, variable, kind))
        elif kind == "trainable" and variable.dtype.is_complex:
            raise JobError(f"variable {name!r} has dtype {variable.dtype.name}: servers train real ones only")
        else:
            local.append((name, variable))
    local += _outside(model, {*seen})
    found.sort(key=lambda item: item[2] == "state")  # stable: trainable first, else in the order found
    if not found or found[0][2] == "state":
        raise JobError(f"model() returned {type(model).__name__} without a trainable floating tf.Variable")
    names = unique([name for name, _, _ in found])
    specs = tuple(_spec(name, variable, kind) for name, (_, variable, kind) in zip(names, found, strict=True))
    return ModelVariables(
        specs,
        variables=tuple(variable for _, variable, _ in found),
        local=tuple(variable for _, variable in local),
        seeds=tuple(variable for name, variable in local if name.rpartition("/")[2] == _SEED),
        constants=tuple(constants),
    )


def _outside(node: Any, seen: set[int], inside: frozenset[int] = frozenset()) -> list[tuple[str, Any]]:
    """(name, variable) of what the layers at or below `node` keep and Keras does not list: a stateful RNN's states."""
    if isinstance(node, keras.Layer):
        pairs = [(name, native(each)) for name, each in kept_outside(node, (keras.Variable, tf.Variable))]
        return [pair for pair in pairs if id(pair[1]) not in seen]
    if id(node) in inside or isinstance(node, tf.Variable | keras.Variable):
        return []
    found = [_outside(child, seen, inside | {id(node)}) for _, child in _children(node)]
    return list({id(each): (name, each) for several in found for name, each in several}.values())


def named_variables(model: Any) -> dict[str, Any]:
    """Return the variables of a model that travel, by the names by which `psworker.connect` knows them: `tf.Variable`s.

    Raises JobError, as for a model of a job.
    """
    found = collect(model)
    return {spec.name: variable for spec, variable in zip(found.specs, found.variables, strict=True)}


def _spec(name: str, variable: Any, kind: Kind) -> VariableSpec:
    if not variable.shape.is_fully_defined():
        raise JobError(f"variable {name!r} has the shape {variable.shape}: every size must be known")
    return VariableSpec(name, tuple(int(n) for n in variable.shape), variable.dtype.name, kind)


def _walk(node: Any, path: str, inside: set[int]) -> Iterator[tuple[str, Any, Kind]]:
    """Every variable at or below `node`, with its name; `inside` holds the ids on the way (no cycles)."""
    if isinstance(node, keras.Layer):
        try:
            found = variables_of(node)
        except ModelError as error:
            raise JobError(str(error)) from error
        prefix = f"{path}/" if path else ""
        yield from ((prefix + name, variable.value, kind) for name, variable, kind in found)
    elif isinstance(node, keras.Variable):
        yield path or node.path, node.value, "trainable" if node.trainable else "state"
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


def remote_layers(node: Any, inside: frozenset[int] = frozenset()) -> list[Any]:
    """List the layers at or below `node`, a model as for `collect`, that look rows up in tables."""
    if isinstance(node, keras.Layer):
        return [layer for layer in node._flatten_layers() if remote_of(layer) is not None]
    if id(node) in inside or isinstance(node, tf.Variable | keras.Variable):
        return []
    found = [remote_layers(child, inside | {id(node)}) for _, child in _children(node)]
    return list({id(layer): layer for several in found for layer in several}.values())


def _is_library_object(node: Any) -> bool:
    """Datasets, scopes and the like: no variables of the model are in them, and they are large."""
    return not isinstance(node, tf.Module) and type(node).__module__.startswith(("tensorflow.", "keras."))
