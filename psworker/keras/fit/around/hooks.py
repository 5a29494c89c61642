"""Our callbacks: one is the first of all in `fit`, so that what others do in the same event comes after it; one the
last."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

import keras


@dataclass(frozen=True)
class Moments:
    """What to do at the moments of `fit`."""

    begin_fit: Callable[[], None]
    begin_epoch: Callable[[int], None]
    # For the progress bar, and any other callback behind this one; the history is Keras' own.
    progress: Callable[[], dict[str, float]]
    end_epoch: Callable[[int, MutableMapping[str, Any]], None]
    # Epochs in all, those that are left, and the batches of one, once that is known.
    extent: Callable[[int, int, int], None]
    end_fit: Callable[[], None]


class Hooks(keras.callbacks.Callback):  # type: ignore[misc]
    """Does it."""

    def __init__(self, moments: Moments) -> None:
        super().__init__()
        self._moments = moments
        # Of the epoch before.
        self._batches = 0
        self._logs: dict[str, Any] = {}

    def on_train_begin(self, logs: Any = None) -> None:
        self._moments.begin_fit()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._moments.begin_epoch(epoch)
        # A CallbackList that the caller made may have none.
        params = self.params or {}
        batches, epochs = params.get("steps") or self._batches, params.get("epochs") or 0
        if batches and epochs > epoch:
            self._moments.extent(epochs, epochs - epoch, batches)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._batches = batch + 1
        logs.update(self._moments.progress())

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._moments.end_epoch(epoch, logs)
        self._logs = dict(logs)

    def on_train_end(self, logs: Any = None) -> None:
        # Keras has this worker's own: without validation where another one validates.
        logs.update(self._logs)
        self._moments.end_fit()


class Last(keras.callbacks.Callback):  # type: ignore[misc]
    """Behind all others of the caller, when these have set what they set before training."""

    def __init__(self, begin: Callable[[], None]) -> None:
        super().__init__()
        self._begin = begin

    def on_train_begin(self, logs: Any = None) -> None:
        self._begin()
