"""Callbacks of a distributed `fit`: those that write files run in one worker only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras.src.utils import file_utils

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


class OnlyChief(keras.callbacks.Callback):  # type: ignore[misc]
    """A callback that sees nothing of `fit` but in the worker that acts for all: one file is written once.

    `chosen` says whether that is this worker. Another one may take over, from a certain epoch on; what the callback has
    to know of the epochs before it then knows.
    """

    def __init__(self, inner: Any, chosen: Callable[[], bool]) -> None:
        super().__init__()
        self.inner = inner
        self._chosen = chosen
        # The callback has seen a beginning, and no end.
        self._acts = False

    def set_params(self, params: Any) -> None:
        super().set_params(params)
        self.inner.set_params(params)

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        # TensorBoard begins a file with it.
        if not isinstance(self.inner, keras.callbacks.TensorBoard):
            self.inner.set_model(model)

    def hear(self, name: str, *arguments: Any, **more: Any) -> None:
        """An event of that name."""
        before, self._acts = self._acts, self._chosen()
        if name == "on_train_begin":
            before = self._acts
            if self._acts and isinstance(self.inner, keras.callbacks.TensorBoard):
                self.inner.set_model(self.model)
        if self._acts and not before:
            self.take_over()
        elif before and not self._acts:
            self.hand_over()
        if self._acts:
            getattr(self.inner, name)(*arguments, **more)
        elif name == "on_epoch_end":
            self.watch(*arguments, **more)

    def take_over(self) -> None:
        """This worker acts from now on: what the others have written goes on."""
        if isinstance(self.inner, keras.callbacks.CSVLogger):
            self.inner.append = True
        if isinstance(self.inner, keras.callbacks.TensorBoard):
            self.inner.set_model(self.model)
        self.inner.on_train_begin()

    def hand_over(self) -> None:
        """Another one does."""
        self.inner.on_train_end()

    def watch(self, epoch: int, logs: Any = None) -> None:
        """An epoch for which another one acts: the best of `save_best_only` is over all of them."""
        inner = self.inner
        value = (logs or {}).get(getattr(inner, "monitor", None))
        if isinstance(inner, keras.callbacks.ModelCheckpoint) and inner.save_best_only and value is not None:
            if inner.monitor_op is None:
                inner._set_monitor_op()
            if np.ndim(value) == 0 and inner._is_improvement(value, inner.best):
                inner.best = value


def _event(name: str) -> Callable[..., None]:
    def tell(self: OnlyChief, *arguments: Any, **more: Any) -> None:
        self.hear(name, *arguments, **more)

    return tell


for _name in _EVENTS:
    setattr(OnlyChief, _name, _event(_name))


class AfterRestoring(OnlyChief):
    """A `BackupAndRestore` that has restored already: this has to happen before anybody joins the job."""

    def on_train_begin(self, logs: Any = None) -> None:
        """Done."""
        self._acts = self._chosen()

    def on_train_end(self, logs: Any = None) -> None:
        try:
            self.hear("on_train_end", logs)
        except FileNotFoundError:
            # Another worker that acted for all has removed it, too.
            pass

    def take_over(self) -> None:
        """The backup is that of all."""

    def hand_over(self) -> None:
        """It stays for whoever acts now."""


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
    return bool(file_utils.exists(file_utils.join(backup.backup_dir, "latest.weights.h5")))


def guarded(callback: Any, chosen: Callable[[], bool]) -> Any:
    """The callback itself, or within `OnlyChief` where it writes files."""
    if isinstance(callback, keras.callbacks.BackupAndRestore):
        return AfterRestoring(callback, chosen)
    return OnlyChief(callback, chosen) if isinstance(callback, WRITERS) else callback


def acts_on_batches(callbacks: Any) -> bool:
    """One of them, not of Keras, does something around a batch, and might set weights there."""
    names = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
    found = (getattr(each, name) for each in listed(callbacks) for name in names)
    return any(not str(getattr(one, "__module__", "")).startswith("keras.") for one in found)


def swaps_weights(callbacks: Any) -> bool:
    """One of them is Keras' SwapEMAWeights: after an evaluation the weights are back, but for rounding."""
    return any(isinstance(each, keras.callbacks.SwapEMAWeights) for each in listed(callbacks))
