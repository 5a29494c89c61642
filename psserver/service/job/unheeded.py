"""Warnings about work that does not count, while the job runs."""

import logging
from collections.abc import Callable

from psserver.policies import Policy
from psserver.policies.composed import TOO_FEW
from psserver.policies.policy import config_of
from pswire.decisions import entries
from pswire.decisions.entries import Entry
from pswire.logs.events import event
from pswire.starving import LATE, STALE, Streak, starving, too_few

log = logging.getLogger("ps-server")


class Unheeded:
    """Takes the entries of a log in order. Warns once of each worker that starves, and once under each policy of
    updates with too few contributions. `policy`: returns the job's present one."""

    def __init__(self, policy: Callable[[], Policy]) -> None:
        self._policy = policy
        self._streaks: dict[str, Streak] = {}
        self._few = False

    def see(self, entry: Entry) -> None:
        # By exact type, because it is called for every entry: a pattern asks an abstract class.
        if type(entry) is entries.Apply:
            for part in entry.parts if self._streaks else ():
                if part.worker in self._streaks:
                    self._streaks[part.worker].counts()
        elif type(entry) is entries.Drop:
            if entry.reason == STALE:
                self._late(entry.worker, entry.ticket)
            elif entry.reason == TOO_FEW and not self._few:
                self._few = True
                policy = self._policy()
                said = too_few(config_of(policy), policy.tensors.fewest)
                log.warning("%s", said, extra=event("too_few"))
        elif type(entry) is entries.Cancel:
            if entry.reason.endswith(LATE):
                self._late(entry.worker, entry.ticket)
        elif type(entry) is entries.Policy:
            self._few = False

    def _late(self, worker: str, ticket: int) -> None:
        if self._streaks.setdefault(worker, Streak()).came_late(ticket):
            said = starving(worker, config_of(self._policy()))
            log.warning("%s", said, extra=event("worker_starves", worker=worker))
