"""The data of one `fit` as work units: what Keras is given instead, and the batch of each dealt part.

Keras wants to read the data itself, ahead of time. So it is given an endless data set of one batch, which shows it
the shapes; what is trained is the batch of the part that came with the grant.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Literal

import keras
import numpy as np

from psworker.backends.keras import FitError, backend
from psworker.keras.fit.data.batches import dataset_batches, is_dataset
from psworker.work import Unit, WorkUnits

# Of `fit`, and what to give instead.
_REFUSED = {
    "validation_split": "validation_data",
    "class_weight": "sample_weight",
    "steps_per_epoch": "no steps_per_epoch: an epoch ends when each unit has counted",
}


class DealtData:
    """Made of the arguments of `fit`, in which it puts what Keras sees. Raises FitError for what it cannot deal."""

    def __init__(self, arguments: MutableMapping[str, Any], *, apart: bool = False) -> None:
        """`apart`: workers end their epochs together, so no unit of the next one is dealt before."""
        for name, instead in _REFUSED.items():
            if arguments.get(name):
                raise FitError(f'fit({name}=...) with sharding="units": give {instead}')
        self._x, shuffle = arguments.get("x"), arguments.get("shuffle", True)
        self._first_epoch = int(arguments.get("initial_epoch", 0))
        self.epochs = int(arguments.get("epochs", 1)) - self._first_epoch
        # Of this fit's epochs, the one that Keras is in.
        self.epoch = 0
        # A tf.data.Dataset, which has an order of its own.
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
            self._read = dataset_batches(self._x)
            self.work = WorkUnits(units=self._read.count, batches=1, shuffle=False, apart=apart)
        else:
            self._arrays(arguments, "units" if shuffle == "batch" else bool(shuffle), apart)
        first = self.batch(self.work.of(0, 0, seed=0))
        arguments.setdefault("validation_batch_size", arguments.get("batch_size"))
        for name in ("y", "sample_weight", "batch_size"):
            arguments.pop(name, None)
        arguments["x"] = backend().endless(first)
        arguments["shuffle"] = False
        self.first = first

    def _arrays(
        self, arguments: MutableMapping[str, Any], shuffle: bool | Literal["units"], apart: bool
    ) -> None:
        parts = (self._x, arguments.get("y"), arguments.get("sample_weight"))
        # As Keras packs them: (x,), (x, y) or (x, y, sample_weight).
        self._data = parts if parts[2] is not None else parts[:2] if parts[1] is not None else parts[:1]
        leaves = keras.tree.flatten(self._data)
        if not leaves or not all(hasattr(leaf, "shape") and hasattr(leaf, "__getitem__") for leaf in leaves):
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

    def at(self, epoch: int) -> None:
        """Keras has begun an epoch."""
        self.epoch = epoch - self._first_epoch

    def keras_epoch(self, epoch: int) -> int:
        """What Keras calls an epoch of the job."""
        return self._first_epoch + epoch

    def batch(self, unit: Unit) -> Any:
        """What Keras would have read: tensors, floats in its own precision."""
        if self._read is not None:
            return self._read[unit.index]
        if isinstance(self._x, keras.utils.PyDataset):
            return keras.tree.map_structure(_tensor, self._x[unit.index])
        return keras.tree.map_structure(lambda array: _tensor(array[unit.indices]), self._data)


def _tensor(values: Any) -> Any:
    found = np.asarray(values)
    return keras.ops.convert_to_tensor(
        found.astype(keras.config.floatx()) if found.dtype.kind == "f" else found
    )
