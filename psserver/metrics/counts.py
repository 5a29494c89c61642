"""Counters of the decision log, as it is written, for the metrics."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from psserver.coordinator import Coordinator
from psserver.coordinator.outputs import Record
from psserver.decisions import entries
from psserver.decisions.counting import moments

PREFIX = "paramserver_"
# Label values are closed sets, but a user's policy may give any reason.
REASONS = {
    "stale": "stale",
    "too few": "too_few",
    "no samples": "no_samples",
    "stopped": "stopped",
    entries.REPLACED: "replaced",
}
OTHER = "other"
# The first workers to join have series of their own; all others share the series `OTHERS`.
MAX_WORKERS = 64
OTHERS = "others"


@dataclass(slots=True)
class WorkerCounts:
    """Counters of one worker name. `seconds`: by activity; `dropped`: by reason."""

    grants: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    cancelled: int = 0
    abandoned: int = 0
    nonfinite_losses: int = 0
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))


class Counts:
    """Counters of a decision log; `see` takes every record in order.

    Activities are those of a commit's times (`docs/runs.md`): pull, compute, before (steps without a ticket), send (the
    rest from grant to commit), wait (for a grant), wasted (under a ticket without a contribution), work (grant to
    commit of a worker that reports no times).
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
        # Also true for NaN, for which every comparison is false.
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


@dataclass(slots=True)
class WorkerNumbers:
    """The numbers of one worker, or of all that share the series `OTHERS`."""

    grants: int = 0
    samples: int = 0
    applied: int = 0
    pending: int = 0
    cancelled: int = 0
    abandoned: int = 0
    nonfinite_losses: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    staleness: Counter[int] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)


def worker_numbers(coordinator: Coordinator, counts: Counts) -> dict[str, WorkerNumbers]:
    """Return the numbers by label: of the first MAX_WORKERS workers each its own, of all others together."""
    found: dict[str, WorkerNumbers] = {}
    for number, name in enumerate(counts.workers):
        label = name if number < MAX_WORKERS else OTHERS
        _add(found.setdefault(label, WorkerNumbers()), coordinator, counts, name)
    return found


def _add(numbers: WorkerNumbers, coordinator: Coordinator, counts: Counts, name: str) -> None:
    logged, tally = counts.workers[name], coordinator.state.roster.tally(name)
    numbers.grants += logged.grants
    numbers.samples += tally.samples
    numbers.applied += tally.applied
    numbers.pending += tally.pending
    numbers.cancelled += logged.cancelled
    numbers.abandoned += logged.abandoned
    numbers.nonfinite_losses += logged.nonfinite_losses
    numbers.dropped.update(logged.dropped)
    numbers.staleness.update(tally.staleness)
    for activity, seconds in logged.seconds.items():
        numbers.seconds[activity] = numbers.seconds.get(activity, 0.0) + seconds
