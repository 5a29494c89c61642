"""Plain `keras.layers.Embedding` layers whose rows are on parameter servers while their model is distributed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from pswire.model.tables import Floats, TableSpec, initial_rows, mix
from pswire.nearest import did_you_mean
from psworker.backends.keras.step import FitError
from psworker.backends.keras.variables import read
from psworker.backends.lookups import LayerLookups
from psworker.keras.embedding import table_spec

# From a table's name to all ids and rows that it has.
Pull = Callable[[str], tuple[NDArray[np.int64], Floats]]


# Layers that have had a table; their rows are trained.
_TRAINED: weakref.WeakSet[Any] = weakref.WeakSet()


class Converted:
    """The layers of a model that were named, each with a table of its name. Raises FitError.

    Their weights leave the model, so that neither optimizer nor servers see them as variables, until `restore`. They
    stay with the layers, and take the table's rows in `fill`.
    """

    def __init__(self, model: Any, names: Iterable[str]) -> None:
        layers = {
            layer.name: layer for layer in model._flatten_layers() if type(layer) is keras.layers.Embedding
        }
        self._layers: list[Any] = []
        names = list(names)
        if names and keras.backend.backend() != "tensorflow":
            raise FitError(
                f"remote: tables need Keras' TensorFlow backend, and this is {keras.backend.backend()}"
            )
        for name in names:
            if name not in layers:
                raise FitError(
                    f"remote: the model has no keras.layers.Embedding named {name!r}{did_you_mean(name, list(layers))}"
                )
            self._layers.append(layers[name])
        found = [(layer, _table(layer)) for layer in self._layers]
        for layer, table in found:
            _convert(layer, table)

    def __bool__(self) -> bool:
        return bool(self._layers)

    def fill(self, pull: Pull) -> None:
        """Give the layers the rows of their tables: initial ones where no gradient has come."""
        for layer in self._layers:
            ids, rows = pull(layer.name)
            whole = initial_rows(layer.remote.table, mix(np.arange(layer.input_dim)))
            whole[ids] = rows
            layer._embeddings.assign(whole)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Hold the weights in the layers for the time of the block, to be saved."""
        for layer in self._layers:
            layer._trainable_variables.append(layer._embeddings)
        try:
            yield
        finally:
            for layer in self._layers:
                layer._trainable_variables.pop()

    def restore(self) -> None:
        """Make the layers Keras' own again, with the rows of the last `fill`."""
        for layer in self._layers:
            layer._trainable_variables.append(layer._embeddings)
            for name in ("call", "remote"):
                layer.__dict__.pop(name, None)
            _TRAINED.add(layer)
        self._layers = []


def _convert(layer: Any, table: TableSpec) -> None:
    from psworker.backends.tensorflow.rows import look_up

    layer._embeddings.assign(initial_rows(table, mix(np.arange(layer.input_dim))))
    layer._trainable_variables.remove(layer._embeddings)
    remote = LayerLookups(table, size=layer.input_dim)

    def call(inputs: Any) -> Any:
        return keras.ops.cast(look_up(remote, inputs), layer.compute_dtype)

    for name, value in (("remote", remote), ("call", call), ("supports_jit", False)):
        object.__setattr__(layer, name, value)


def _table(layer: Any) -> TableSpec:
    """Describe the table of a layer. Raises FitError for a layer that a table cannot stand for."""
    if not layer.built:
        raise FitError(
            f"remote: layer {layer.name!r} is not built yet: begin the model with keras.Input, or call it once before "
            "distribute()"
        )
    refused = {
        "embeddings_regularizer": layer.embeddings_regularizer,
        "embeddings_constraint": layer.embeddings_constraint,
        "LoRA": layer.lora_enabled,
        "quantization": layer.quantization_mode,
    }
    for what, value in refused.items():
        if value:
            raise FitError(
                f"remote: layer {layer.name!r} has {what}, which needs all rows in each step, and a worker has those "
                "of its batch: leave it out"
            )
    try:
        table = table_spec(layer.name, layer.output_dim, layer.embeddings_initializer, None, 0)
    except ValueError as error:
        raise FitError(f"remote: layer {layer.name!r}: {error}") from error
    _check_fresh(layer, table)
    return table


def _check_fresh(layer: Any, table: TableSpec) -> None:
    """Refuse weights that its initializer has not drawn: tables take none, rows begin on the servers."""
    values = np.asarray(read(layer.embeddings), np.float32)
    if table.initializer == "uniform":
        low, high = table.numbers
    elif table.initializer == "normal":
        mean, stddev = table.numbers
        low, high = mean - 7 * stddev, mean + 7 * stddev
    else:
        low = high = 0.0
    if layer in _TRAINED or not (np.float32(low) <= values.min() and values.max() <= np.float32(high)):
        raise FitError(
            f"remote: layer {layer.name!r} has weights that its initializer has not drawn, and the rows of a table "
            "begin as it says, on the servers: expected a new layer, or train it without remote="
        )
