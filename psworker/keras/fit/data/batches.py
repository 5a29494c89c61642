"""A `tf.data.Dataset` as numbered batches, for work units: read from its start, by each worker on its own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from psworker.keras.errors import FitError


class DatasetBatches:
    """Batch k of a dataset that is the same whenever it is read.

    Units are dealt in rising order, so reading goes on from where it stands, past those that other workers have; a unit
    that is dealt again is behind it, and is looked for from the start. Raises FitError for a dataset that has no end,
    no known length, or another order each time.
    """

    def __init__(self, dataset: Any) -> None:
        found = int(dataset.cardinality())
        if found == tf.data.INFINITE_CARDINALITY:
            raise FitError(
                'sharding="units" counts each batch once, and this dataset has no end: expected dataset.take(n), '
                "or one without repeat()"
            )
        if found == tf.data.UNKNOWN_CARDINALITY:
            raise FitError(
                'sharding="units" deals numbers of batches, and nobody knows how many this dataset has: expected '
                "dataset.apply(tf.data.experimental.assert_cardinality(n)), with n in batches"
            )
        if not found:
            raise FitError("fit got a dataset without any batch")
        self.count = found
        for each in _chain(dataset):
            if type(each).__name__ == "_ShuffleDataset" and not _repeats(each):
                raise FitError(
                    'sharding="units" deals batches by number, and this dataset is shuffled anew for each reading: '
                    "expected shuffle(n, seed=..., reshuffle_each_iteration=False), or no shuffle"
                )
        self._dataset = dataset
        self._reading: Iterator[Any] = iter(())
        # The number of the batch that `_reading` gives next; behind all at first.
        self._next = found + 1

    def __getitem__(self, number: int) -> Any:
        if number < self._next:
            self._reading, self._next = iter(self._dataset.skip(number)), number
        try:
            while self._next < number:
                next(self._reading)
                self._next += 1
            self._next += 1
            return next(self._reading)
        except StopIteration:
            raise FitError(
                f"the dataset said {self.count} batches and ended before batch {number}: expected the same data "
                "whenever it is read"
            ) from None


def unseeded(dataset: Any) -> bool:
    """It is shuffled in an order that every process draws for itself."""
    shuffles = [each for each in _chain(dataset) if type(each).__name__ == "_ShuffleDataset"]
    return any(not any((int(each._seed), int(each._seed2))) for each in shuffles)


def _chain(dataset: Any) -> Iterator[Any]:
    """The dataset and all that it is made of."""
    yield dataset
    for each in dataset._inputs():
        yield from _chain(each)


def _repeats(shuffled: Any) -> bool:
    seeds = int(shuffled._seed), int(shuffled._seed2)
    return any(seeds) and shuffled._reshuffle_each_iteration is False


# Of arrays so many rows at either end are looked at.
ROWS = 64


def cut(arguments: MutableMapping[str, Any], index: int, count: int) -> None:
    """Leave of the data in the arguments of `fit` every `count`-th sample, from `index` on; of a PyDataset or a
    tf.data.Dataset every `count`-th batch. Raises FitError for what cannot be cut."""
    x = arguments.get("x")
    if isinstance(x, keras.utils.PyDataset):
        arguments["x"] = Part(x, index, count)
    elif isinstance(x, tf.data.Dataset):
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
            values = np.asarray(leaf[:ROWS] if whole else leaf)
            ends = [values, np.asarray(leaf[-ROWS:])] if whole else [values]
            found.update(repr((leaf.shape, str(values.dtype))).encode())
            for each in ends:
                found.update(np.ascontiguousarray(each).tobytes())
    return 1 + int.from_bytes(found.digest(), "little") % 2**20
