"""The sums over all workers of an epoch, while they gather them."""

import logging
import time
from dataclasses import replace

import grpc

from psserver.coordinator.epochs import EpochSums, Report, Totals
from psserver.coordinator.sentences import named
from psserver.service.errors import Refused
from psserver.service.job.decider import Decider
from pswire.logs.events import event

log = logging.getLogger("ps-server")


class Epochs:
    """Of one job. The loop's thread owns it."""

    def __init__(self, decider: Decider) -> None:
        self._decider = decider
        self._sums = EpochSums(decider.agreement.terms.report_limit, decider.began)
        # It was said that workers have other metrics.
        self._warned = False

    def gather(self, worker: str, incarnation: int, epoch: Report) -> Totals:
        """A member's epoch, and the sums over all. Raises Refused for another's, EpochError."""
        roster = self._decider.coordinator.roster
        member = roster.present.get(worker)
        if member is None or member.incarnation != incarnation:
            # The session finds out by itself, and comes back as another incarnation.
            raise Refused(grpc.StatusCode.UNAVAILABLE, f"{worker} is no member at present")
        before = self.chief
        coordinator = self._decider.coordinator
        if not coordinator.policy.by_samples:
            # A contribution of nothing would count.
            epoch = replace(epoch, yields=False)
        ended = coordinator.stopped is not None or coordinator.resting
        over = ended and coordinator.work_terms is not None
        totals = self._sums.add(member, epoch, roster, time.monotonic(), over=over)
        self._tell_of_chief(before)
        if totals.differing and not self._warned:
            self._warned = True
            log.warning(
                "the metrics of %s are not those of %s, and are added up apart from them: compile all workers' models "
                "with the same metrics",
                *(named(sorted(totals.workers)), named(sorted(totals.differing))),
                extra=event("metrics_differ"),
            )
        return totals

    @property
    def chief(self) -> str:
        """The worker that validates and writes files for all; empty while none had to take that over from worker 0."""
        return self._sums.chief

    def _tell_of_chief(self, before: str) -> None:
        chief = self.chief
        member = self._decider.coordinator.roster.present.get(chief)
        if chief == before or member is None or not (before or member.rank):
            return
        log.warning(
            "%s has gone, is done or does not come to the end of its epoch: %s validates and writes files for all from "
            "the next epoch on",
            *(before or "worker 0", chief),
            extra=event("chief_changed", worker=chief),
        )

    def awaited(self, now: float) -> tuple[str, float, float] | None:
        """What an epoch's sums wait for: what, since when (monotonic), for how many seconds at most."""
        coordinator = self._decider.coordinator
        return self._sums.awaited(coordinator.roster, now) if coordinator.stopped is None else None
