"""The data of one `fit`: which kind it is, its part for one worker, and a number by which equal data is known."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, MutableMapping
from typing import Any

import keras
import numpy as np

from psworker.backends.keras import FitError, read


def is_dataset(x: Any) -> bool:
    """It is a tf.data.Dataset; TensorFlow is not loaded to find out."""
    return any(
        each.__module__.startswith("tensorflow.") and each.__name__ == "DatasetV2" for each in type(x).__mro__
    )


def dataset_batches(dataset: Any) -> Any:
    """A tf.data.Dataset as numbered batches. Raises FitError."""
    from psworker.backends.tensorflow.datasets import DatasetBatches

    return DatasetBatches(dataset)


# Of arrays so many rows at either end are looked at.
ROWS = 64


def cut(arguments: MutableMapping[str, Any], index: int, count: int) -> None:
    """Leave of the data in the arguments of `fit` every `count`-th sample, from `index` on; of a PyDataset or a
    tf.data.Dataset every `count`-th batch. Raises FitError for what cannot be cut."""
    x: Any = arguments.get("x")
    if isinstance(x, keras.utils.PyDataset):
        arguments["x"] = Part(x, index, count)
    elif is_dataset(x):
        from psworker.backends.tensorflow.datasets import unseeded

        if unseeded(x):
            raise FitError(
                'sharding="auto" cuts a dataset by the numbers of its batches, and each worker shuffles this one in '
                "another order: expected shuffle(n, seed=...), or no shuffle"
            )
        arguments["x"] = x.shard(count, index)
    elif arrays(x):
        for name in ("x", "y", "sample_weight"):
            if arguments.get(name) is not None:
                whole = keras.tree.map_structure(np.asarray, arguments[name])
                arguments[name] = keras.tree.map_structure(lambda array: array[index::count], whole)
    else:
        raise FitError(
            'sharding="auto" cuts arrays, keras.utils.PyDataset and tf.data.Dataset, got '
            f"{type(x).__name__}: cut it in the script, by session.worker_index and session.worker_count"
        )


def arrays(x: Any) -> bool:
    """Arrays, in any structure that Keras takes."""
    leaves = keras.tree.flatten(x)
    return bool(leaves) and all(hasattr(leaf, "shape") and hasattr(leaf, "__getitem__") for leaf in leaves)


class Part(keras.utils.PyDataset):  # type: ignore[misc]
    """Every `count`-th batch of another one, from `index` on."""

    def __init__(self, inner: Any, index: int, count: int) -> None:
        more = {"workers": inner.workers, "use_multiprocessing": inner.use_multiprocessing}
        super().__init__(**more, max_queue_size=inner.max_queue_size)
        self._inner, self._index, self._count = inner, index, count

    def __len__(self) -> int:
        return len(range(self._index, self._inner.num_batches, self._count))

    def __getitem__(self, number: int) -> Any:
        return self._inner[self._index + number * self._count]

    def on_epoch_begin(self) -> None:
        self._inner.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self._inner.on_epoch_end()


def fingerprint(given: Mapping[str, Any] | None, first_batch: Any) -> int:
    """A number from 1 to 2**20 of what a worker trains on: of arrays whatever the order in which they are read, of
    anything else the first batch."""
    found = hashlib.blake2b(digest_size=8)
    whole = given is not None and arrays(given.get("x"))
    for leaf in keras.tree.flatten([given.get("x"), given.get("y")] if whole and given else first_batch):
        if leaf is not None:
            values = read(leaf[:ROWS] if whole else leaf)
            ends = [values, read(leaf[-ROWS:])] if whole else [values]
            found.update(repr((leaf.shape, str(values.dtype))).encode())
            for each in ends:
                found.update(np.ascontiguousarray(each).tobytes())
    return 1 + int.from_bytes(found.digest(), "little") % 2**20
