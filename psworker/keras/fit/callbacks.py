"""Callbacks of a distributed `fit`: ours around the user's, and those of the user's that only one worker may run."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras.src.utils import file_utils

from psworker.backends.keras.step import FitError
from psworker.backends.keras.variables import KerasVariables
from psworker.engine import Grant
from psworker.keras.fit.membership import FitMembership
from psworker.link import Link

# They write one file or folder, at a path that all workers share.
WRITERS = (
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.BackupAndRestore,
    keras.callbacks.TensorBoard,
    keras.callbacks.CSVLogger,
    *([keras.callbacks.OrbaxCheckpoint] if hasattr(keras.callbacks, "OrbaxCheckpoint") else []),
)
_EVENTS = tuple(name for name in dir(keras.callbacks.Callback) if name.startswith("on_"))


# Ours


@dataclass(frozen=True)
class FitMoments:
    """The actions at the moments of `fit`."""

    begin_fit: Callable[[], None]
    begin_epoch: Callable[[int], None]
    # Values for the progress bar and for callbacks behind ours; Keras' history does not have them.
    progress: Callable[[], dict[str, float]]
    end_epoch: Callable[[int, MutableMapping[str, Any]], None]
    # Gets the number of epochs, of those that are left, and of an epoch's batches, once that is known.
    extent: Callable[[int, int, int], None]
    end_fit: Callable[[], None]


class First(keras.callbacks.Callback):  # type: ignore[misc]
    """The first callback of a fit, so that others act behind `moments`."""

    def __init__(self, moments: FitMoments) -> None:
        super().__init__()
        self._moments = moments
        # Of the last epoch.
        self._batches = 0
        self._logs: dict[str, Any] = {}

    def on_train_begin(self, logs: Any = None) -> None:
        self._moments.begin_fit()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._moments.begin_epoch(epoch)
        # A CallbackList that the caller made may have no parameters.
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
        # Keras passes this worker's own logs, which lack the validation of another worker.
        logs.update(self._logs)
        self._moments.end_fit()


class Last(keras.callbacks.Callback):  # type: ignore[misc]
    """The last callback of a fit: calls `begin` when all others have prepared for training."""

    def __init__(self, begin: Callable[[], None]) -> None:
        super().__init__()
        self._begin = begin

    def on_train_begin(self, logs: Any = None) -> None:
        self._begin()


# The user's


class OnlyChief(keras.callbacks.Callback):  # type: ignore[misc]
    """A callback that acts in the chief only, so that each file is written once.

    `chosen` says whether this worker is the chief. The chief may change between epochs; the callback then learns what
    it needs of the epochs before.
    """

    def __init__(self, inner: Any, chosen: Callable[[], bool]) -> None:
        super().__init__()
        self.inner = inner
        self._chosen = chosen
        # The inner callback has been begun and not ended.
        self._acts = False

    def set_params(self, params: Any) -> None:
        super().set_params(params)
        self.inner.set_params(params)

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        # TensorBoard would begin a file.
        if not isinstance(self.inner, keras.callbacks.TensorBoard):
            self.inner.set_model(model)

    def forward(self, name: str, *arguments: Any, **more: Any) -> None:
        """Pass the event `name` on if this worker is the chief."""
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
        """Begin to act, and continue what the last chief wrote."""
        if isinstance(self.inner, keras.callbacks.CSVLogger):
            self.inner.append = True
        if isinstance(self.inner, keras.callbacks.TensorBoard):
            self.inner.set_model(self.model)
        self.inner.on_train_begin()

    def hand_over(self) -> None:
        """Stop acting, for another worker does now."""
        self.inner.on_train_end()

    def watch(self, epoch: int, logs: Any = None) -> None:
        """Note an epoch of another chief: `save_best_only` compares with the best of all epochs."""
        inner = self.inner
        value = (logs or {}).get(getattr(inner, "monitor", None))
        if isinstance(inner, keras.callbacks.ModelCheckpoint) and inner.save_best_only and value is not None:
            if inner.monitor_op is None:
                inner._set_monitor_op()
            if np.ndim(value) == 0 and inner._is_improvement(value, inner.best):
                inner.best = value


def _event(name: str) -> Callable[..., None]:
    def call(self: OnlyChief, *arguments: Any, **more: Any) -> None:
        self.forward(name, *arguments, **more)

    return call


for _name in _EVENTS:
    setattr(OnlyChief, _name, _event(_name))


class AfterRestoring(OnlyChief):
    """A `BackupAndRestore` that `Backups` has let restore, before the worker joined the job."""

    def on_train_begin(self, logs: Any = None) -> None:
        """Restore nothing again."""
        self._acts = self._chosen()

    def on_train_end(self, logs: Any = None) -> None:
        try:
            self.forward("on_train_end", logs)
        except FileNotFoundError:
            # Another chief has removed the backup, too.
            pass

    def take_over(self) -> None:
        """Leave the backup: it is the same for all workers."""

    def hand_over(self) -> None:
        """Leave the backup to the next chief."""


def listed(callbacks: Any) -> list[Any]:
    """List the callbacks, in any form that `fit` takes."""
    several = callbacks.callbacks if isinstance(callbacks, keras.callbacks.CallbackList) else callbacks
    if isinstance(several, list | tuple):
        return list(several)
    return [] if several is None else [several]


def guarded(callback: Any, chosen: Callable[[], bool]) -> Any:
    """Return the callback itself, or within `OnlyChief` where it writes files."""
    if isinstance(callback, keras.callbacks.BackupAndRestore):
        return AfterRestoring(callback, chosen)
    return OnlyChief(callback, chosen) if isinstance(callback, WRITERS) else callback


def acts_on_batches(callbacks: Any) -> bool:
    """One of the callbacks, not of Keras, acts around a batch, and might set weights there."""
    names = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
    found = (getattr(each, name) for each in listed(callbacks) for name in names)
    return any(not str(getattr(one, "__module__", "")).startswith("keras.") for one in found)


class Backups:
    """The `BackupAndRestore` callbacks of one fit.

    They restore in worker 0, and before it joins, because servers take the weights of that moment.
    """

    def __init__(self) -> None:
        self._callbacks: list[Any] = []
        # The folder that a callback restored from, until the first version shows whether that was right; and whether
        # the job had been joined before.
        self._restored, self._late = "", False

    def among(self, callbacks: Any) -> None:
        """Take the callbacks of a fit that begins."""
        kind = keras.callbacks.BackupAndRestore
        self._callbacks = [each for each in listed(callbacks) if isinstance(each, kind)]

    def restore(
        self,
        model: Any,
        membership: FitMembership,
        variables: KerasVariables | None,
        join: Callable[[], bool],
    ) -> None:
        """Restore when training begins. `join` joins the job and says whether this is worker 0. Raises FitError."""
        before = model._initial_epoch
        found = [each.backup_dir for each in self._callbacks if _has_weights(each)]
        link, untrained = membership.link, membership.given is not None
        self._late = link is not None and untrained
        self._restored = found[0] if found and (link is None or untrained) else ""
        if self._restored and self._late and membership.alone:
            self._refuse(1)
        index = 0 if membership.alone else membership.connection.task_index
        for backup in self._callbacks:
            if not (index if link is None else link.info.rank):
                backup.on_train_begin()
        if not self._restored:
            return
        if link is None and index is None:
            # Only by joining this worker learns its number.
            if not join():
                model._initial_epoch = before
        elif self._late and variables is not None:
            # Compared with the first version, which shows whether they are lost.
            membership.given = variables.values()

    def check(self, link: Link, grant: Grant) -> None:
        """Refuse a backup of another job: a worker that comes back to a running job never starts at version 0."""
        if self._restored and grant.version == 0 and (self._late or link.info.size > 1):
            self._refuse(link.info.size)
        self._restored = ""

    def _refuse(self, workers: int) -> None:
        why = (
            "after the job was joined (`.session` joins it, with the weights of that moment)"
            if self._late
            else f"in a job of {workers} workers, of which any may give the weights that all begin with"
        )
        raise FitError(
            f"BackupAndRestore has a backup in {str(self._restored)!r} and cannot go on from it {why}: in every "
            "worker, load it before distribute() (model.load_weights of latest.weights.h5), give fit the "
            "initial_epoch, and BackupAndRestore an empty folder"
        )


def _has_weights(backup: Any) -> bool:
    return bool(file_utils.exists(file_utils.join(backup.backup_dir, "latest.weights.h5")))
