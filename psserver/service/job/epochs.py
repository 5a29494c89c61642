"""What workers measure: the sums over all of them of an epoch, and metrics of versions that they evaluate."""

import logging
import time
from collections import deque
from dataclasses import replace
from typing import Any

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


# Evaluations that are remembered for those who look on.
REMEMBERED = 100


class Evaluations:
    """Of one job. `final`: the final version's metrics, once they are known. The loop's thread owns it."""

    def __init__(self, decider: Decider) -> None:
        self._decider = decider
        self.final: dict[str, float] = {}
        # The newest version that was evaluated while the job went on.
        self._newest = -1
        # Lines of metrics.jsonl, and how many there have been.
        self._recent: deque[dict[str, Any]] = deque(maxlen=REMEMBERED)
        self._count = 0

    def report(self, worker: str, version: int, metrics: dict[str, float]) -> str | None:
        """The final version's, of the worker that was asked for them, once; before that any version's, of worker 0, in
        rising order: others of worker 0 come late, and are left out. Why they are refused, if they are."""
        coordinator = self._decider.coordinator
        asked, final = coordinator.evaluator, coordinator.version
        stopped = coordinator.stopped is not None
        member = coordinator.roster.present.get(worker)
        if stopped and worker == asked and version == final and not self.final:
            self.final = metrics
        elif member is None or member.rank or version > final or (stopped and version == final):
            of = f"{asked}'s of version {final}" if asked is not None and not self.final else "none"
            of = of if stopped else f"worker 0's, of versions up to {final}"
            return (
                f"a report of version {version} by {worker}: expected {of} (Stop.evaluate says who is asked)"
            )
        elif stopped or version <= self._newest:
            return None
        self._newest = version
        t = round(time.monotonic() - self._decider.began, 6)
        line = {"t": t, "kind": "eval", "version": version, "worker": worker, "metrics": metrics}
        self._decider.write_or_fail(lambda: self._decider.routes.run_log.metric(line))
        self._recent.append(line)
        self._count += 1
        return None

    def since(self, first: int) -> list[tuple[int, dict[str, Any]]]:
        """Evaluations from number `first` on with their numbers, as far as they are remembered."""
        oldest = self._count - len(self._recent)
        return [(number, line) for number, line in enumerate(self._recent, oldest) if number >= first]
