"""The data of one `fit`: this worker's part of it, or work units that the coordinator deals."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, MutableMapping
from typing import Any, Literal

import keras
import numpy as np

from psworker.backends.keras.step import FitError, backend
from psworker.backends.keras.variables import read
from psworker.work import Unit, WorkUnits

# Arguments of `fit` that dealt data excludes, and what to give instead.
_REFUSED = {
    "validation_split": "validation_data",
    "class_weight": "sample_weight",
    "steps_per_epoch": "no steps_per_epoch: an epoch ends when each unit has counted",
}
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
        from psworker.backends.tensorflow.datasets import unseeded

        if unseeded(x):
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


# sharding="units"


class DealtData:
    """The data of one `fit` as work units, and what Keras is given in its place.

    Keras reads data ahead of time. So it gets one batch without end, which shows it the shapes; what is trained is the
    batch of the part that came with the grant.
    """

    def __init__(self, arguments: MutableMapping[str, Any], *, apart: bool = False) -> None:
        """Take the data out of the arguments of `fit`. `apart`: workers end their epochs together, so no unit of the
        next epoch is dealt before. Raises FitError for what cannot be dealt."""
        for name, instead in _REFUSED.items():
            if arguments.get(name):
                raise FitError(f'fit({name}=...) with sharding="units": give {instead}')
        self._x, shuffle = arguments.get("x"), arguments.get("shuffle", True)
        self._first_epoch = int(arguments.get("initial_epoch", 0))
        self.epochs = int(arguments.get("epochs", 1)) - self._first_epoch
        # The epoch that Keras is in, counted from this fit's first.
        self.epoch = 0
        # Numbered batches of a tf.data.Dataset, which has an order of its own.
        self._read: Any = None
        if isinstance(self._x, keras.utils.PyDataset) or is_dataset(self._x):
            for name in ("y", "sample_weight", "batch_size"):
                if arguments.get(name) is not None:
                    raise FitError(f"fit({name}=...): expected it in the {type(self._x).__name__} only")
        if isinstance(self._x, keras.utils.PyDataset):
            self.work = WorkUnits(
                units=int(self._x.num_batches or 0), batches=1, shuffle=bool(shuffle), apart=apart
            )
        elif is_dataset(self._x):
            from psworker.backends.tensorflow.datasets import DatasetBatches

            self._read = DatasetBatches(self._x)
            self.work = WorkUnits(units=self._read.count, batches=1, shuffle=False, apart=apart)
        else:
            self._take_arrays(arguments, "units" if shuffle == "batch" else bool(shuffle), apart)
        first = self.batch(self.work.of(0, 0, seed=0))
        arguments.setdefault("validation_batch_size", arguments.get("batch_size"))
        for name in ("y", "sample_weight", "batch_size"):
            arguments.pop(name, None)
        arguments["x"] = data = backend().endless(first, differ=self._differ())
        arguments["shuffle"] = False
        self.first = first
        #: The types of batches, where the data says them: their first axis is open where batches differ in size.
        self.types: Any = getattr(data, "element_spec", None)

    def _take_arrays(
        self, arguments: MutableMapping[str, Any], shuffle: bool | Literal["units"], apart: bool
    ) -> None:
        parts = (self._x, arguments.get("y"), arguments.get("sample_weight"))
        # As Keras packs them: (x,), (x, y) or (x, y, sample_weight).
        self._data = parts if parts[2] is not None else parts[:2] if parts[1] is not None else parts[:1]
        if not are_arrays(self._data):
            raise FitError(
                'fit with sharding="units" deals arrays, keras.utils.PyDataset and tf.data.Dataset, got '
                f"{type(self._x).__name__}: what can only be read from its start cannot be dealt; make a PyDataset "
                "of it, or a psworker.Job with WorkUnits(files=...)"
            )
        self._data = keras.tree.map_structure(np.asarray, self._data)
        counts = {len(leaf) for leaf in keras.tree.flatten(self._data)}
        if len(counts) != 1 or not min(counts):
            raise FitError(f"expected arrays of equally many samples, at least one, got {sorted(counts)}")
        size = int(arguments.get("batch_size") or 32)
        self.work = WorkUnits(samples=counts.pop(), batch_size=size, shuffle=shuffle, apart=apart)

    def _differ(self) -> bool:
        """Return whether batches may differ in size, as Keras decides it for the same data."""
        if isinstance(self._x, keras.utils.PyDataset):
            return True
        if is_dataset(self._x):
            specs: Any = self._x
            return any(spec.shape[:1] == [None] for spec in keras.tree.flatten(specs.element_spec))
        return bool(self.work.samples % self.work.batch_size)

    def begin_epoch(self, epoch: int) -> None:
        """Note that Keras has begun an epoch."""
        self.epoch = epoch - self._first_epoch

    def keras_epoch(self, epoch: int) -> int:
        """Keras' number of an epoch of the job."""
        return self._first_epoch + epoch

    def batch(self, unit: Unit) -> Any:
        """Return the unit's batch as Keras would have read it: arrays of the backend, floats in Keras' precision."""
        if self._read is not None:
            return self._read[unit.index]
        if isinstance(self._x, keras.utils.PyDataset):
            return keras.tree.map_structure(_tensor, self._x[unit.index])
        return keras.tree.map_structure(lambda array: _tensor(array[unit.indices]), self._data)


def _tensor(values: Any) -> Any:
    found = np.asarray(values)
    floats = found.dtype.kind == "f"
    return keras.ops.convert_to_tensor(found.astype(keras.config.floatx()) if floats else found)
