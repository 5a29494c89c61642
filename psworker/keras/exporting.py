"""A model with remote tables as a plain Keras model, which needs nothing of this project."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras.src.models import Functional
from numpy.typing import NDArray

from psworker.backends import ModelError
from psworker.keras.embedding import RemoteEmbedding

Pull = Callable[[str], tuple[NDArray[np.int64], NDArray[np.float32]]]


def export(model: Any, pull: Pull) -> Any:
    """Return a copy of a functional or sequential model with `IntegerLookup` and `Embedding` for each RemoteEmbedding.

    `pull`: from a table's name to its ids and rows, such as a session's `pull_table`. Ids that have no row give zeros.
    The copy is compiled with the model's loss and metrics. Raises ModelError for a model of another kind.
    """
    if not isinstance(model, keras.Sequential | Functional):
        raise ModelError(
            f"export: expected a functional or sequential model, whose layers can be exchanged, got "
            f"{type(model).__name__}: read its rows by `pull_table`"
        )
    pairs: list[tuple[Any, Any]] = []

    def copied(layer: Any) -> Any:
        if isinstance(layer, RemoteEmbedding):
            return _plain(layer, pull)
        if not isinstance(layer, keras.layers.Layer):
            # An operation, such as the `!=` that makes a mask.
            return layer
        made = layer.__class__.from_config(layer.get_config())
        pairs.append((layer, made))
        return made

    found = keras.models.clone_model(model, clone_function=copied, recursive=True)
    for layer, made in pairs:
        made.set_weights(layer.get_weights())
    if model.compiled:
        found.compile_from_config(model.get_compile_config())
    return found


def _plain(layer: RemoteEmbedding, pull: Pull) -> Any:
    """Make a model from ids to rows."""
    ids, rows = pull(layer.remote.table.name)
    mask_id, given = layer.remote.mask_id, layer._inbound_nodes[0].input_tensors[0]
    if mask_id is not None:
        rows, ids = rows[ids != mask_id], ids[ids != mask_id]
    known = keras.layers.IntegerLookup(
        vocabulary=ids, mask_token=mask_id, oov_token=_unused(ids, mask_id), name="ids"
    )
    first = 1 if mask_id is None else 2
    matrix = np.concatenate([np.zeros((first, layer.remote.table.dim), np.float32), rows])
    embedding = keras.layers.Embedding(
        *matrix.shape, mask_zero=layer.supports_masking, name="rows", dtype=layer.dtype_policy
    )
    inputs = keras.Input(given.shape[1:], dtype=given.dtype, name="inputs")
    places = known(inputs)
    found = embedding(places)
    embedding.set_weights([matrix])
    return keras.Model(inputs, found, name=layer.name)


def _unused(ids: NDArray[np.int64], mask_id: int | None) -> int:
    """Choose an id that stands for all unknown ones."""
    taken = {*ids.tolist(), mask_id}
    return next(candidate for candidate in range(-1, -len(taken) - 2, -1) if candidate not in taken)
