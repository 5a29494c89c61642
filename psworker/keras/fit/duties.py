"""Which worker validates, writes files and sets the learning rate for all: the chief."""

from __future__ import annotations

import logging

from pswire.logs.events import event
from psworker.session import Session

log = logging.getLogger("ps-worker")


class Duties:
    """Worker 0 has them. When it has gone, or does not come to the end of an epoch, the coordinator says who takes
    over: all hear it at that end, and it counts from the next epoch on."""

    def __init__(self) -> None:
        # Until a job is joined.
        self.mine = True
        self._worker, self._chief = "", ""

    def joined(self, session: Session) -> None:
        """Where another has taken over already, worker 0 is one like all others."""
        self._worker = session.worker
        self.mine = session.chief == session.worker if session.chief else session.worker_index == 0
        # Of number 0 the name is not known before the first end of an epoch.
        self._chief = session.chief or (session.worker if self.mine else "")

    def told(self, chief: str) -> None:
        """At the end of an epoch."""
        before, self._chief = self._chief, chief or self._chief
        # Given up at once, and taken over by `begin_epoch`: there is one at most.
        self.mine = self.mine and self._chief == self._worker
        if self._chief != before and (before or self._chief == self._worker):
            self._tell(before or "worker 0")

    def begin_epoch(self) -> None:
        self.mine = self.mine or (bool(self._chief) and self._chief == self._worker)

    def _tell(self, before: str) -> None:
        who = "this worker does" if self._chief == self._worker else f"{self._chief} does"
        log.warning(
            "%s, which validates, saves and sets the learning rate for all, has gone, is done or did not come to the "
            "end of this epoch, of which nothing is validated and saved: %s so from the next epoch on",
            *(before, who),
            extra=event("chief_changed", worker=self._chief),
        )
