"""Counters of a job's decision log, kept while it is written."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from psserver.checkpoint.rewind import Mark
from psserver.coordinator.outputs import Record
from psserver.service.job.log_file import Check, always
from psserver.service.job.run_log import RunLog
from pswire.decisions import entries
from pswire.decisions.counting import moments

# Label values are closed sets: a policy of the user's may give any reason.
REASONS = {
    "stale": "stale",
    "too few": "too_few",
    "no samples": "no_samples",
    "stopped": "stopped",
    entries.NONFINITE: "nonfinite",
}
OTHER = "other"


@dataclass(slots=True)
class WorkerCounts:
    """Of one worker name. `seconds`: by activity; `dropped`: by reason."""

    grants: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    cancelled: int = 0
    abandoned: int = 0
    nonfinite_losses: int = 0
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))


class Counts:
    """Give it every record of the log in order.

    Activities are those of a commit's times (`docs/runs.md`): pull, compute, before (steps without a
    ticket), send (what is left of grant to commit), wait (for a grant), wasted (under a ticket that came to
    no contribution), work (grant to commit of a worker that does not say what it did).
    """

    def __init__(self) -> None:
        self.workers: dict[str, WorkerCounts] = {}
        self.kinds: Counter[str] = Counter()
        self.lost = 0
        self.rejoined = 0
        # Ticket -> when it was granted; worker -> when its last ticket ended, or it joined.
        self._granted: dict[int, float] = {}
        self._free: dict[str, float] = {}

    def see(self, record: Record) -> None:
        entry, t = record.entry, record.t
        self.kinds[entry.kind] += 1
        match entry:
            case entries.Grant(worker, ticket):
                self._of(worker).grants += 1
                self._granted[ticket] = t
            case entries.Commit():
                self._committed(entry, t)
            case entries.Drop(worker, _, _, reason):
                self._of(worker).dropped[REASONS.get(reason, OTHER)] += 1
            case entries.Cancel(worker, ticket):
                self._of(worker).cancelled += 1
                self._wasted(worker, ticket, t)
            case entries.Abandon(worker, ticket):
                self._of(worker).abandoned += 1
                self._wasted(worker, ticket, t)
            case entries.Resume(worker):
                self._free[worker] = t
            case entries.Join(worker, incarnation):
                self._of(worker)
                self._free[worker] = t
                self.rejoined += incarnation > 0
            case entries.Leave(worker) | entries.Done(worker):
                self._free.pop(worker, None)
            case entries.Lost():
                self.lost += 1
            case entries.Back():
                self.rejoined += 1

    def _of(self, worker: str) -> WorkerCounts:
        found = self.workers.get(worker)
        if found is None:
            found = self.workers[worker] = WorkerCounts()
        return found

    def _committed(self, commit: entries.Commit, t: float) -> None:
        counts = self._of(commit.worker)
        # Other than the log's null: a float that is not finite differs from itself, or is infinite.
        counts.nonfinite_losses += not abs(commit.loss) < float("inf")
        granted = self._granted.pop(commit.ticket, t)
        since = self._free.get(commit.worker, granted)
        self._free[commit.worker] = t
        seconds = counts.seconds
        if commit.pull is None:
            seconds["before"] += 0.0
            seconds["wait"] += max(granted - since, 0.0)
            seconds["work"] += t - max(since, granted)
            return
        asked, begun, pulled, computed = moments(since, granted, t, commit)
        seconds["before"] += asked - since
        seconds["wait"] += max(granted - asked, 0.0)
        seconds["pull"] += pulled - begun
        seconds["compute"] += computed - pulled
        seconds["send"] += t - computed

    def _wasted(self, worker: str, ticket: int, t: float) -> None:
        granted = self._granted.pop(ticket, None)
        if granted is None:
            return
        since = self._free.get(worker, granted)
        self._free[worker] = t
        self._of(worker).seconds["wait"] += max(granted - since, 0.0)
        self._of(worker).seconds["wasted"] += t - max(since, granted)


class CountedRunLog(RunLog):
    """A run log whose records are counted once they are taken. The loop's thread owns it, `counts` too."""

    def __init__(
        self,
        folder: Path | None,
        going_on: Mark | None = None,
        check: Check = always,
        rescue: Path | None = None,
    ) -> None:
        super().__init__(folder, going_on, check, rescue)
        self.counts = Counts()

    def append(self, record: Record) -> None:
        super().append(record)
        self.counts.see(record)
