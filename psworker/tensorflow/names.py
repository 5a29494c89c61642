"""Names of a Keras model's variables that depend on the model alone.

Keras numbers layers that nobody named, process-wide: the first Dense is
"dense", the next one "dense_1", in another model, too. And a model that was
loaded from a file leaves out the models around a layer. So the same model has
other paths when it is the second one of a process, or was loaded.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import keras

# What Keras calls a variable without a name.
_UNNAMED = "variable"


def stable_names(model: Any) -> dict[int, str]:
    """By the id of a variable's tf.Variable: the layers on the way to it, without the model itself, and its name.

    "block/dense/kernel". Numbers that Keras gave are counted from 0 again within `model`; layers that the
    user named keep their names.
    """
    ways = list(_ways(model, () if isinstance(model, keras.Model) else (model,), {id(model)}))
    numbers: dict[str, set[int]] = defaultdict(set)
    for way, variable in ways:
        for layer in way:
            _count(numbers, _base(type(layer).__name__), layer.name)
        _count(numbers, _UNNAMED, variable.name)
    renamed = {
        _numbered(base, number): _numbered(base, place)
        for base, found in numbers.items()
        for place, number in enumerate(sorted(found))
    }
    names: dict[int, str] = {}
    for way, variable in ways:
        parts = [*(layer.name for layer in way), variable.name]
        names.setdefault(id(variable.value), "/".join(renamed.get(part, part) for part in parts))
    return names


def _ways(layer: Any, way: tuple[Any, ...], seen: set[int]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """(layers on the way, variable) for every variable, each layer once."""
    for variable in (*layer._trainable_variables, *layer._non_trainable_variables):
        yield way, variable
    for inner in layer._layers:
        if id(inner) not in seen:
            seen.add(id(inner))
            yield from _ways(inner, (*way, inner), seen)


def _count(numbers: dict[str, set[int]], base: str, name: str) -> None:
    given = re.fullmatch(rf"{re.escape(base)}(?:_(\d+))?", name)
    if given is not None:
        numbers[base].add(int(given[1] or 0))


def _numbered(base: str, number: int) -> str:
    return f"{base}_{number}" if number else base


def _base(kind: str) -> str:
    """As Keras makes a name of a class's."""
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", kind))
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()
