"""Reports of workers: epoch sums, evaluations and progress."""

import logging
import math
from collections import deque
from dataclasses import replace
from typing import Any

from psserver.coordinator import Coordinator
from psserver.coordinator.epochs import EpochReport, EpochSums, Totals
from psserver.coordinator.progress import JobProgress, dealt, measured
from psserver.coordinator.roster import named
from psserver.service.errors import unavailable
from psserver.service.job.decider import Decider
from pswire.logs.events import event

log = logging.getLogger("ps-server")


class Epochs:
    """Epoch sums of one job. The loop's thread owns it."""

    def __init__(self, decider: Decider, evaluations: "EvaluationReports") -> None:
        self._decider, self._evaluations = decider, evaluations
        # Worker, incarnation and number of the newest validation that is recorded.
        self._recorded: tuple[str, int, int] | None = None
        self._sums = EpochSums(decider.agreement.terms.report_limit, decider.now())
        # Whether a warning about different metrics was logged.
        self._warned = False

    def gather(self, worker: str, incarnation: int, epoch: EpochReport) -> Totals:
        """Add a member's epoch and return the sums over all. Raises Refused for a worker that is no member,
        EpochError."""
        roster = self._decider.coordinator.state.roster
        member = roster.member(worker, incarnation)
        if member is None:
            # The worker's session notices by itself and comes back as another incarnation.
            raise unavailable(f"{worker} is no member at present")
        before = self.chief
        coordinator = self._decider.coordinator
        if not coordinator.policy.by_samples:
            # Otherwise a contribution of nothing would count.
            epoch = replace(epoch, yields=False)
        ended = coordinator.state.stopped is not None or coordinator.state.resting
        over = ended and coordinator.state.work_terms is not None
        totals = self._sums.add(member, epoch, roster, self._decider.now(), over=over)
        self._tell_of_chief(before)
        if member.worker == before or not (before or member.rank):
            self._record(member.worker, incarnation, epoch)
        if totals.differing and not self._warned:
            self._warned = True
            log.warning(
                "the metrics of %s are not those of %s, and are added up apart from them: compile all workers' models "
                "with the same metrics",
                *(named(sorted(totals.workers)), named(sorted(totals.differing))),
                extra=event("metrics_differ"),
            )
        return totals

    def _record(self, worker: str, incarnation: int, epoch: EpochReport) -> None:
        """Record what the chief validated for all, once however often it is sent."""
        source = worker, incarnation, epoch.number
        if epoch.layout == "validation" and epoch.values and source != self._recorded:
            self._recorded = source
            metrics = {name.removeprefix("val_"): value for name, value in epoch.values.items()}
            version = self._decider.coordinator.state.version
            if version > self._evaluations.newest:
                self._evaluations.record(worker, version, metrics)

    @property
    def chief(self) -> str:
        """The worker that validates and writes files for all; empty until one has to take over from worker 0."""
        return self._sums.chief

    def _tell_of_chief(self, before: str) -> None:
        chief = self.chief
        member = self._decider.coordinator.state.roster.present.get(chief)
        if chief == before or member is None or not (before or member.rank):
            return
        log.warning(
            "%s left, is done or did not reach the end of its epoch: from the next epoch on %s validates and writes "
            "files for all",
            *(before or "worker 0", chief),
            extra=event("chief_changed", worker=chief),
        )

    def awaited(self, now: float) -> tuple[str, float, float] | None:
        """Return what the epoch sums wait for, since when (monotonic), and for how many seconds at most."""
        coordinator = self._decider.coordinator
        return (
            self._sums.awaited(coordinator.state.roster, now) if coordinator.state.stopped is None else None
        )


# Remembered evaluations.
EVALUATIONS = 100


class EvaluationReports:
    """Evaluations of versions, by workers. `final`: metrics of the final version, once known. The loop's thread
    owns it."""

    def __init__(self, decider: Decider) -> None:
        self._decider = decider
        self.final: dict[str, float] = {}
        #: The newest version evaluated.
        self.newest = -1
        # Lines of metrics.jsonl, and their number in all.
        self._recent: deque[dict[str, Any]] = deque(maxlen=EVALUATIONS)
        self._count = 0

    def report(self, worker: str, version: int, metrics: dict[str, float]) -> str | None:
        """Take metrics of a version; return why they are refused, or None.

        Of the final version they come once, from the worker that was asked. Before that they come from worker 0 in
        rising order; late ones are ignored.
        """
        coordinator = self._decider.coordinator
        asked, final = coordinator.state.evaluator, coordinator.state.version
        stopped = coordinator.state.stopped is not None
        member = coordinator.state.roster.present.get(worker)
        if stopped and worker == asked and version == final and not self.final:
            self.final = metrics
        elif member is None or member.rank or version > final or (stopped and version == final):
            of = f"{asked}'s of version {final}" if asked is not None and not self.final else "none"
            of = of if stopped else f"worker 0's, of versions up to {final}"
            return (
                f"a report of version {version} by {worker}: expected {of} (Stop.evaluate says who is asked)"
            )
        elif stopped or version <= self.newest:
            return None
        self.record(worker, version, metrics)
        return None

    @property
    def last(self) -> dict[str, float]:
        """The metrics of the final version; the newest ones where nobody measured it. Empty if there are none."""
        return self.final or (self._recent[-1]["metrics"] if self._recent else {})

    def record(self, worker: str, version: int, metrics: dict[str, float]) -> None:
        """Write an evaluation of a version, and remember it."""
        self.newest = max(version, self.newest)
        t = round(self._decider.now(), 6)
        line = {"t": t, "kind": "eval", "version": version, "worker": worker, "metrics": metrics}
        self._decider.write_or_fail(lambda: self._decider.routes.run_log.metric(line))
        self._recent.append(line)
        self._count += 1

    def since(self, first: int) -> list[tuple[int, dict[str, Any]]]:
        """Return remembered evaluations from number `first` on, with their numbers."""
        oldest = self._count - len(self._recent)
        return [(number, line) for number, line in enumerate(self._recent, oldest) if number >= first]


# Seconds between two samples of the pace, and the number of remembered ones: a minute's, if each is new.
LOOK_EVERY, LOOKS = 1.0, 60


class ProgressReports:
    """Progress of one job: epochs, batches and the time left, for people.

    A worker's pace is kept by name, so there are no more of them than tallies.
    """

    def __init__(self) -> None:
        # Samples by unit, or by worker for its own batches: time, and how much was done.
        self._looks: dict[str, deque[tuple[float, int]]] = {}
        self._looked = -math.inf

    def look(self, coordinator: Coordinator, now: float) -> None:
        """Sample the pace, from time to time."""
        if now - self._looked < LOOK_EVERY or not coordinator.state.trains:
            return
        self._looked = now
        for name, done, _ in self._parts(coordinator):
            looks = self._looks.setdefault(name, deque(maxlen=LOOKS))
            # Equal samples are skipped, so the pace of a slow worker is that of more than a minute.
            if not looks or looks[-1][1] != done:
                looks.append((now, done))

    def measure(self, coordinator: Coordinator, now: float) -> JobProgress | None:
        """Return the progress; None if the length of the job is unknown."""
        found = measured(coordinator.state, coordinator.terms)
        if found is None:
            return None
        left = 0.0
        if found.done < found.total and coordinator.state.stopped is None:
            each = [self._left(*part, now) for part in self._parts(coordinator)]
            left = math.nan if not each or any(map(math.isnan, each)) else max(each)
        return replace(found, seconds_left=left)

    def missing(self, coordinator: Coordinator) -> dict[str, Any]:
        """Return what was not trained on, empty if nothing: "batches" by worker (None: unknown), and work units or
        "parts" of them.

        Where work units are dealt, other workers take up what one has left.
        """
        if coordinator.state.work is not None:
            found = dealt(coordinator.state)
            if coordinator.state.work.complete:
                skipped = coordinator.state.work.skipped
                return {"batches": {}, "parts": skipped} if skipped else {}
            return {"batches": {}, found.unit: max(1, found.total - found.done)}
        batches = dict[str, int | None]()
        for name in sorted(coordinator.state.roster.unfinished):
            extent, batch = (
                coordinator.state.extents.get(name),
                coordinator.state.roster.tally(name).next_batch,
            )
            batches[name] = None if extent is None else max(0, extent.batches - batch)
        for name, tally in coordinator.state.roster.tallies.items():
            if tally.missed and batches.get(name, 0) is not None:
                batches[name] = (batches.get(name) or 0) + tally.missed
        return {"batches": batches} if batches else {}

    def _parts(self, coordinator: Coordinator) -> list[tuple[str, int, int]]:
        """Return what the end waits for: name, done and total of each part with a pace of its own.

        Workers with data of their own do not take each other's, so the job ends with the slowest that is present.
        All else is done together.
        """
        found = measured(coordinator.state, coordinator.terms)
        if found is None:
            return []
        if found.unit != "batches":
            return [(found.unit, found.done, found.total)]
        roster = coordinator.state.roster
        needed = [m.worker for m in roster.present.values() if m.state != "done" and m.absent_since is None]
        return [
            (
                name,
                min(roster.tally(name).next_batch, coordinator.state.extents[name].batches),
                coordinator.state.extents[name].batches,
            )
            for name in needed
            if name in coordinator.state.extents
        ]

    def _left(self, name: str, done: int, total: int, now: float) -> float:
        """Return the seconds left at the recent pace; NaN without one."""
        if done >= total:
            return 0.0
        looks = self._looks.get(name)
        if not looks or now <= looks[0][0] or done <= looks[0][1]:
            return math.nan
        return (total - done) * (now - looks[0][0]) / (done - looks[0][1])
