"""The data of one `fit`: this worker's part of it, and a number that tells whether others train on the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import keras
import numpy as np

from psworker.backends.keras.step import FitError
from psworker.backends.keras.variables import read

# Rows at either end of an array that `fingerprint` looks at.
ROWS = 64


def is_dataset(x: Any) -> bool:
    """Recognize a tf.data.Dataset without loading TensorFlow."""
    return any(
        each.__module__.startswith("tensorflow.") and each.__name__ == "DatasetV2" for each in type(x).__mro__
    )


def are_arrays(x: Any) -> bool:
    """Recognize arrays, in any structure that Keras takes."""
    leaves = keras.tree.flatten(x)
    return bool(leaves) and all(hasattr(leaf, "shape") and hasattr(leaf, "__getitem__") for leaf in leaves)


def fingerprint(given: Mapping[str, Any] | None, first_batch: Any) -> int:
    """Return a number from 1 to 2**20 by which workers find out that they train on the same data.

    Of arrays it is the same in whatever order they are read; of anything else it is that of the first batch.
    """
    found = hashlib.blake2b(digest_size=8)
    whole = given is not None and are_arrays(given.get("x"))
    for leaf in keras.tree.flatten([given.get("x"), given.get("y")] if whole and given else first_batch):
        if leaf is not None:
            values = read(leaf[:ROWS] if whole else leaf)
            ends = [values, read(leaf[-ROWS:])] if whole else [values]
            found.update(repr((leaf.shape, str(values.dtype))).encode())
            for each in ends:
                found.update(np.ascontiguousarray(each).tobytes())
    return 1 + int.from_bytes(found.digest(), "little") % 2**20


# sharding="auto"


def cut(arguments: MutableMapping[str, Any], index: int, count: int) -> None:
    """Leave every `count`-th sample, from `index` on, of the data in the arguments of `fit`; of a PyDataset or a
    tf.data.Dataset every `count`-th batch. Raises FitError for what cannot be cut."""
    x: Any = arguments.get("x")
    if isinstance(x, keras.utils.PyDataset):
        arguments["x"] = DatasetPart(x, index, count)
    elif is_dataset(x):
        if _unseeded(x):
            raise FitError(
                'sharding="auto" cuts a dataset by the numbers of its batches, and each worker shuffles this one in '
                "another order: expected shuffle(n, seed=...), or no shuffle"
            )
        arguments["x"] = x.shard(count, index)
    elif are_arrays(x):
        for name in ("x", "y", "sample_weight"):
            if arguments.get(name) is not None:
                whole = keras.tree.map_structure(np.asarray, arguments[name])
                arguments[name] = keras.tree.map_structure(lambda array: array[index::count], whole)
    else:
        raise FitError(
            'sharding="auto" cuts arrays, keras.utils.PyDataset and tf.data.Dataset, got '
            f"{type(x).__name__}: cut it in the script, by session.rank and session.size"
        )


class DatasetPart(keras.utils.PyDataset):  # type: ignore[misc]
    """Every `count`-th batch of another PyDataset, from `index` on."""

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


def _unseeded(dataset: Any) -> bool:
    """Return whether a tf.data.Dataset is shuffled in an order that every process draws for itself."""
    shuffles = [each for each in _chain(dataset) if type(each).__name__ == "_ShuffleDataset"]
    return any(not any((int(each._seed), int(each._seed2))) for each in shuffles)


def _chain(dataset: Any) -> Iterator[Any]:
    """Yield the dataset and all that it is made of."""
    yield dataset
    for each in dataset._inputs():
        yield from _chain(each)
