"""A run over time: when each worker held a ticket, computed, waited and communicated."""

import math
from dataclasses import dataclass, field

from pslab.runs.folder import Run
from pslab.runs.work import COMPUTING, KINDS, UNREPORTED, WASTED, Stretch, Work, WorkFold
from pswire.decisions import entries as facts

# The first tickets of each worker, whose stretches are kept; seconds are of all tickets.
KEPT = 200


@dataclass(slots=True)
class Lane:
    """The time of one worker. `ends`: when its first tickets ended; `commits`: when each was committed, and its fate.

    `seconds`: by kind of stretch, of the whole run.
    """

    worker: str
    stretches: list[Stretch] = field(default_factory=list)
    commits: list[tuple[float, str]] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))

    @property
    def full(self) -> bool:
        return len(self.ends) >= KEPT

    @property
    def pace(self) -> float:
        """Seconds of work per ticket whose stretches are kept; infinite if none was committed."""
        worked = sum(s.end - s.begin for s in self.stretches if s.kind in (COMPUTING, WASTED, UNREPORTED))
        return worked / len(self.commits) if self.commits else math.inf


@dataclass(frozen=True, slots=True)
class Timeline:
    """The lanes of all workers. `seconds`: from first grant to last commit."""

    lanes: tuple[Lane, ...]
    seconds: float

    @property
    def kept(self) -> float:
        """Up to this time every stretch is kept."""
        return min((lane.ends[-1] for lane in self.lanes if lane.full), default=math.inf)

    def until(self, tickets: int) -> float:
        """Return when the median worker has had `tickets` tickets or all of its own; the end if no worker has more."""
        if all(len(lane.ends) <= tickets for lane in self.lanes):
            return self.seconds
        ends = sorted(lane.ends[:tickets][-1] for lane in self.lanes if lane.ends)
        return ends[len(ends) // 2]


def timeline(run: Run) -> Timeline:
    """Return the lanes in the order in which the workers joined. Raises RunError for an unreadable log."""
    begun = run.first_grant()
    reader = _LogReader()
    for entry in run.decisions():
        reader.see(entry.fact, max(0.0, entry.t - begun))
    return Timeline(tuple(reader.lanes.values()), reader.seconds)


class _LogReader:
    """Makes lanes from the entries of a log, in order."""

    def __init__(self) -> None:
        self.lanes: dict[str, Lane] = {}
        self.seconds = 0.0
        self._log = WorkFold()
        # Ticket without a fate -> lane and number of its commit there.
        self._pending: dict[int, tuple[Lane, int]] = {}

    def see(self, fact: facts.Entry, now: float) -> None:
        match fact:
            case facts.Join(worker):
                self.lanes.setdefault(worker, Lane(worker))
            case facts.Apply(_, _, _, parts):
                for part in parts:
                    self._settled(part.ticket, "applied")
            case facts.Drop(_, ticket):
                self._settled(ticket, "dropped")
        for work in self._log.work(fact, now):
            self._worked(work, now)

    def _worked(self, work: Work, now: float) -> None:
        lane = self.lanes.setdefault(work.worker, Lane(work.worker))
        for stretch in (*work.before, *work.held):
            if stretch.end > stretch.begin:
                lane.seconds[stretch.kind] += stretch.end - stretch.begin
                if not lane.full:
                    lane.stretches.append(stretch)
        if work.commit is not None:
            if not lane.full:
                self._pending[work.ticket] = lane, len(lane.commits)
                lane.commits.append((now, "pending"))
        if not work.rest:
            if not lane.full:
                lane.ends.append(now)
            self.seconds = now

    def _settled(self, ticket: int, fate: str) -> None:
        lane, number = self._pending.pop(ticket, (None, 0))
        if lane is not None:
            lane.commits[number] = lane.commits[number][0], fate
