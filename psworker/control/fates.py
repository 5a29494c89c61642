"""What comes of this worker's results: a warning while all of them are too old, and a last line where none counted."""

import json
import logging

from pswire.logs.events import event
from pswire.protocol import Cancel, Disposition, Event, Stop
from pswire.starving import LATE, STALE, Streak, starving, uncounted
from psworker.control.joining import Joined

log = logging.getLogger("ps-worker")


class Fates:
    """Takes the events of one session. The session's lock guards it."""

    def __init__(self, joined: Joined) -> None:
        self._joined, self._streak, self._dropped = joined, Streak(), 0
        self._over = False

    def see(self, happened: Event) -> None:
        match happened:
            case Disposition(_, "applied", version) if version:
                self._streak.counts()
            case Disposition(ticket, "dropped", _, _, _, reason):
                self._dropped += 1
                if reason == STALE:
                    self._late(ticket)
            case Cancel(ticket, reason) if reason.endswith(LATE):
                self._late(ticket)
            case Stop() if not self._over:
                self._over = True
                self._end()

    def _late(self, ticket: int) -> None:
        if self._streak.came_late(ticket):
            worker = self._joined.reply.worker
            said = starving(worker, json.loads(self._joined.reply.policy or "{}"))
            log.warning("%s", said, extra=event("worker_starves", worker=worker))

    def _end(self) -> None:
        tickets = max(self._dropped, self._streak.late)
        if not self._streak.applied:
            said = uncounted({self._joined.reply.worker: (tickets, self._dropped, 0, 0.0)})
            if said:
                log.warning("did not count: %s", said, extra=event("uncounted"))
