"""A digest of what a Keras model computes beside its variables, which the workers of a job compare.

Names of layers, seeds and initial values decide nothing, and are left out, and so is what no configuration tells: code
of the user's own, arrays.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import keras

_ASIDE = ("name", "module", "registered_name", "seed", "build_config", "compile_config", "build_input_shape")
# Vocabularies are asked for, however a layer has got its own.
_ASKED = ("vocabulary", "vocabulary_size")
# Of a model in a configuration: names of its layers, with numbers.
_WIRES = ("keras_history", "input_layers", "output_layers")


def function_of(model: Any, loss: Any) -> str:
    """Return the digest; "" for a model that does not tell its configuration."""
    try:
        layers = model._flatten_layers()
        vocabularies = [list(each.get_vocabulary()) for each in layers if hasattr(each, "get_vocabulary")]
        found = [type(model).__name__, *_plain([model.get_config(), loss, vocabularies], {})]
        return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()
    except Exception:
        # Whatever the user's own code raises.
        return ""


def _plain(value: Any, names: Mapping[str, int], *, wires: bool = False) -> Any:
    """Return a part of a configuration as JSON. `names`: numbers of the layers around; `wires`: it names layers."""
    if isinstance(value, str):
        return names.get(value, value) if wires else value
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_plain(each, names, wires=wires) for each in value]
    if isinstance(value, Mapping):
        return (
            "lambda" if value.get("class_name") in ("Lambda", "__lambda__") else _mapping(value, names, wires)
        )
    if isinstance(value, keras.Loss):
        return [type(value).__name__, _plain(value.get_config(), names)]
    if hasattr(value, "shape"):
        return "array"
    return getattr(value, "__name__", type(value).__name__)


def _mapping(value: Mapping[str, Any], names: Mapping[str, int], wires: bool) -> dict[str, Any]:
    if isinstance(layers := value.get("layers"), list):
        names = {str(each.get("config", {}).get("name")): number for number, each in enumerate(layers)}
    kept = {key: part for key, part in value.items() if key not in _ASIDE and key not in _ASKED}
    found = {
        str(key): _plain(part, names, wires=wires or key in _WIRES)
        for key, part in kept.items()
        if not str(key).endswith("initializer")
    }
    if isinstance(shape := found.get("batch_shape"), list):
        # Without the size of a batch.
        found["batch_shape"] = shape[1:]
    return found
