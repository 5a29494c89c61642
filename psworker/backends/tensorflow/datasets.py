"""A `tf.data.Dataset` as numbered batches, for work units: read from its start, by each worker on its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from psworker.backends.keras.step import FitError


class DatasetBatches:
    """Batch k of a dataset that is the same whenever it is read.

    Units are dealt in rising order, so reading goes on from where it stands, past those that other workers have; a unit
    that is dealt again is behind it, and is looked for from the start. Raises FitError for a dataset that has no
    end, no known length, or another order each time.
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
            return _as_the_backend_takes_it(next(self._reading))
        except StopIteration:
            raise FitError(
                f"the dataset said {self.count} batches and ended before batch {number}: expected the same data "
                "whenever it is read"
            ) from None


def unseeded(dataset: Any) -> bool:
    """Return whether the dataset is shuffled in an order that every process draws for itself."""
    shuffles = [each for each in _chain(dataset) if type(each).__name__ == "_ShuffleDataset"]
    return any(not any((int(each._seed), int(each._seed2))) for each in shuffles)


def _chain(dataset: Any) -> Iterator[Any]:
    """Yield the dataset and all that it is made of."""
    yield dataset
    for each in dataset._inputs():
        yield from _chain(each)


def _repeats(shuffled: Any) -> bool:
    seeds = int(shuffled._seed), int(shuffled._seed2)
    return any(seeds) and shuffled._reshuffle_each_iteration is False


def _as_the_backend_takes_it(batch: Any) -> Any:
    if keras.backend.backend() == "tensorflow":
        return batch
    return keras.tree.map_structure(lambda tensor: keras.ops.convert_to_tensor(tensor.numpy()), batch)
