"""Callbacks of a distributed `fit`: ours comes first, and those that write files run in worker 0 only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

# They write one file or folder, and every worker has the same path.
WRITERS = (
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.BackupAndRestore,
    keras.callbacks.TensorBoard,
    keras.callbacks.CSVLogger,
    *([keras.callbacks.OrbaxCheckpoint] if hasattr(keras.callbacks, "OrbaxCheckpoint") else []),
)
# What is left of a float32 number, relative to 1 or itself, when Keras has exchanged it by sums and differences.
SWAPPED = 2.0**-18
_EVENTS = tuple(name for name in dir(keras.callbacks.Callback) if name.startswith("on_"))


class OnlyWorker0(keras.callbacks.Callback):  # type: ignore[misc]
    """A callback that sees nothing of `fit` in any worker but number 0: one file is written once.

    `chosen` is asked when training begins, when this worker's number is known.
    """

    def __init__(self, inner: Any, chosen: Callable[[], bool]) -> None:
        super().__init__()
        self.inner = inner
        self._chosen = chosen

    def set_params(self, params: Any) -> None:
        super().set_params(params)
        self.inner.set_params(params)

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        self.inner.set_model(model)


def _event(name: str) -> Callable[..., None]:
    def tell(self: OnlyWorker0, *arguments: Any, **more: Any) -> None:
        if self._chosen():
            getattr(self.inner, name)(*arguments, **more)

    return tell


for _name in _EVENTS:
    setattr(OnlyWorker0, _name, _event(_name))


class AfterRestoring(OnlyWorker0):
    """A `BackupAndRestore` that has restored already: this has to happen before anybody joins the job."""

    def on_train_begin(self, logs: Any = None) -> None:
        """Done."""


def listed(callbacks: Any) -> list[Any]:
    """The callbacks in any form that `fit` takes."""
    several = callbacks.callbacks if isinstance(callbacks, keras.callbacks.CallbackList) else callbacks
    if isinstance(several, list | tuple):
        return list(several)
    return [] if several is None else [several]


def backups_of(callbacks: Any) -> list[Any]:
    """Those that restore weights when training begins."""
    return [each for each in listed(callbacks) if isinstance(each, keras.callbacks.BackupAndRestore)]


def has_weights(backup: Any) -> bool:
    """There is something to restore."""
    return bool(tf.io.gfile.exists(tf.io.gfile.join(backup.backup_dir, "latest.weights.h5")))


def guarded(callback: Any, chosen: Callable[[], bool]) -> Any:
    """The callback itself, or within `OnlyWorker0` where it writes files."""
    if isinstance(callback, keras.callbacks.BackupAndRestore):
        return AfterRestoring(callback, chosen)
    return OnlyWorker0(callback, chosen) if isinstance(callback, WRITERS) else callback


def acts_on_batches(callbacks: Any) -> bool:
    """One of them, not of Keras, does something around a batch, and might set weights there."""
    names = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
    found = (getattr(each, name) for each in listed(callbacks) for name in names)
    return any(not str(getattr(one, "__module__", "")).startswith("keras.") for one in found)


def swaps_weights(callbacks: Any) -> bool:
    """One of them is Keras' SwapEMAWeights: after an evaluation the weights are back, but for rounding."""
    return any(isinstance(each, keras.callbacks.SwapEMAWeights) for each in listed(callbacks))
