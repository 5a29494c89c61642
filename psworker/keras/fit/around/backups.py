"""What `BackupAndRestore` restores: in worker 0, and before this worker joins, for servers take the weights of that
moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from psworker.backends.keras import FitError, KerasVariables
from psworker.engine import Grant
from psworker.keras.fit.around.callbacks import backups_of, has_weights
from psworker.keras.fit.membership import Membership
from psworker.session import Session


class Backups:
    """Those callbacks of one fit that restore weights."""

    def __init__(self) -> None:
        self._callbacks: list[Any] = []
        # Where one has restored from, until the first version says whether that was right; and that the job was joined
        # before.
        self._restored, self._late = "", False

    def among(self, callbacks: Any) -> None:
        """Of the fit that begins."""
        self._callbacks = backups_of(callbacks)

    def restore(
        self,
        model: Any,
        membership: Membership,
        variables: KerasVariables | None,
        join: Callable[[], bool],
    ) -> None:
        """When training begins. `join`: joins the job, and says whether this is worker 0. Raises FitError."""
        before = model._initial_epoch
        found = [each.backup_dir for each in self._callbacks if has_weights(each)]
        session, untrained = membership.session, membership.given is not None
        self._late = session is not None and untrained
        self._restored = found[0] if found and (session is None or untrained) else ""
        if self._restored and self._late and membership.place is None:
            self._refuse(1)
        index = 0 if membership.place is None else membership.place.task_index
        for backup in self._callbacks:
            if not (index if session is None else session.worker_index):
                backup.on_train_begin()
        if not self._restored:
            return
        if session is None and index is None:
            # Only by joining this worker learns its number.
            if not join():
                model._initial_epoch = before
        elif self._late and variables is not None:
            # Held against the first version, which says whether they are lost.
            membership.given = variables.values()

    def check(self, session: Session, grant: Grant) -> None:
        """A worker that comes back to a running job has a backup of it; at version 0 it is one of another job."""
        if self._restored and grant.version == 0 and (self._late or session.worker_count > 1):
            self._refuse(session.worker_count)
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
