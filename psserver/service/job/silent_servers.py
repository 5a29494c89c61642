"""Servers whose process hangs while its connection stands: they are not lost, and say nothing."""

import logging
import time

from psserver.service.job.decider import Decider
from psserver.service.store.checkpoints import PATIENCE, limit
from pswire.logs.events import event

log = logging.getLogger("ps-server")

# What is waited for, since when (monotonic), and for how many seconds at most.
Wait = tuple[str, float, float]


class SilentServers:
    """Of one job. The loop's thread owns it; `tick` gives up those that are silent for too long."""

    def __init__(self, decider: Decider) -> None:
        self._decider = decider

    @property
    def unanswered(self) -> Wait | None:
        """What the job waits for while servers are asked about an update."""
        decider = self._decider
        agreement, coordinator, trials = decider.agreement, decider.coordinator, decider.trials
        if not coordinator.trying or agreement.plan is None:
            return None
        what = f"{trials.missing} to say whether version {coordinator.version + 1} would be finite"
        return what, trials.since, limit(agreement.plan, agreement.terms.worker_timeout)

    @property
    def silent(self) -> Wait | None:
        """The server that is silent for longest, as `unanswered`."""
        followers, patience = self._decider.routes.followers, self._patience
        found = [waited for follower in followers if (waited := follower.silent(patience))]
        return min(found, key=lambda waited: waited[1], default=None)

    @property
    def _patience(self) -> float:
        """Seconds for a server that may have much to do."""
        agreement = self._decider.agreement
        timeout = agreement.terms.worker_timeout
        return PATIENCE + 4 * timeout if agreement.plan is None else limit(agreement.plan, timeout)

    def tick(self) -> None:
        """Give up who has been waited for long enough."""
        self._end_unanswered()
        self._give_up_silent()

    def _end_unanswered(self) -> None:
        """Nothing can be decided without the answer."""
        waited, decider = self.unanswered, self._decider
        if waited is None or time.monotonic() - waited[1] < waited[2]:
            return
        reason = f"waited {waited[2]:g} s for {waited[0]}: not lost, but silent (see its process and its log)"
        log.error("%s", reason, extra=event("trial_unanswered", servers=decider.trials.missing))
        decider.input(lambda c, now: c.stop(reason, now, success=False, cause="server"))

    def _give_up_silent(self) -> None:
        """A server that hangs is lost, like one that is gone."""
        if self._decider.coordinator.stopped is not None:
            # The end has limits of its own.
            return
        for follower in self._decider.routes.followers:
            waited = follower.silent(self._patience)
            if waited is not None and time.monotonic() - waited[1] >= waited[2]:
                follower.give_up(f"waited {waited[2]:g} s for {waited[0]} (see its process and its log)")
