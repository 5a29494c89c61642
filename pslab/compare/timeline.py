"""Who computed, waited and communicated when: a decision log as stretches of every worker's time.

What a worker reported with its commits (see `Times` in the protocol) lies in order
between the end of its ticket before and the commit: steps before it asked,
waiting for the grant, the version on its way in, computing; what is left is
the way out: the push, and the ways of grant and commit. Where an update is
summed in a fixed order, a push may have to wait for its turn first (see
`Turns`). With a ticket that was granted ahead there is no waiting for the
grant, and coming in is what the training loop still had to wait for.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from heapq import heappop, heappush
from statistics import fmean

from pslab.compare.measure import first_grant
from pslab.runs.folder import Run
from pslab.runs.table import worker_order
from pswire.decisions import entries as facts

COMPUTING, RECEIVING, SENDING, WAITING = "computing", "receiving", "sending", "waiting for a grant"
# With a gradient that is ready, for those that are summed before it.
TURN = "waiting for its turn"
# Under a ticket that was cancelled or given up; after a cancel up to the next grant, for the worker may not
# have stopped at once.
WASTED = "wasted"
# From grant to commit, of a worker that does not report what it did.
UNREPORTED = "at work"
KINDS = (COMPUTING, RECEIVING, SENDING, WAITING, TURN, WASTED, UNREPORTED)

# Payloads that a server holds before their turn, by its usual `--staging-limit`.
STAGED = 4
# Seconds by which sums of a log's numbers may be off.
ROUNDING = 1e-5
# Tickets of each worker whose stretches are kept; shares are of all.
KEPT = 200
# Most workers that have a line each in the table of shares.
WORKER_LINES = 16


@dataclass(frozen=True, slots=True)
class Stretch:
    """In seconds from the first grant. `kind`: one of KINDS."""

    kind: str
    begin: float
    end: float


@dataclass(slots=True)
class Lane:
    """One worker. `ends`: when its first tickets ended; `commits`: when, and what became of it."""

    worker: str
    stretches: list[Stretch] = field(default_factory=list)
    commits: list[tuple[float, str]] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    # By kind, of the whole run, also where no stretches are kept.
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))

    @property
    def full(self) -> bool:
        return len(self.ends) >= KEPT

    @property
    def pace(self) -> float:
        """Seconds of work for each ticket, of those whose stretches are kept; infinite where none came to an end."""
        worked = sum(s.end - s.begin for s in self.stretches if s.kind in (COMPUTING, WASTED, UNREPORTED))
        return worked / len(self.commits) if self.commits else math.inf

    @property
    def shares(self) -> dict[str, float]:
        """Of its time in the job, by kind; all 0 when it had none."""
        total = sum(self.seconds.values())
        return {kind: seconds / total if total else 0.0 for kind, seconds in self.seconds.items()}


@dataclass(frozen=True, slots=True)
class Timeline:
    """`reported`: some worker reported what it did. `seconds`: from the first grant to the last commit."""

    lanes: tuple[Lane, ...]
    reported: bool
    seconds: float

    @property
    def kept(self) -> float:
        """Until then all stretches are here."""
        return min((lane.ends[-1] for lane in self.lanes if lane.full), default=math.inf)

    def until(self, tickets: int) -> float:
        """When the median worker has had `tickets` tickets, or all of its own; the end where nobody has had more."""
        if all(len(lane.ends) <= tickets for lane in self.lanes):
            return self.seconds
        ends = sorted(lane.ends[:tickets][-1] for lane in self.lanes if lane.ends)
        return ends[len(ends) // 2]


def timeline(run: Run) -> Timeline:
    """Lanes in the order in which the workers joined. Raises RunError for a log that cannot be read."""
    begun = first_grant(run)
    reader = _LogReader()
    for entry in run.decisions():
        reader.see(entry.fact, max(0.0, entry.t - begun))
    return Timeline(tuple(reader.lanes.values()), reader.reported, reader.seconds)


class Turns:
    """When there was room for a payload, of tickets that are summed in a fixed order. Give it every fact of a log.

    A server takes few payloads before their turn. One that finds no room comes in when it is the next, or when one
    of those few is summed. The log shows when that was, of servers with the usual room and of payloads that take no
    long time to come in.
    """

    def __init__(self) -> None:
        # Tickets that are not summed yet: by turn, the next first; when each was committed, None before it is.
        self._order: list[tuple[int, int]] = []
        self._open: dict[int, float | None] = {}
        self._held: dict[str, set[int]] = {}
        # The next, since when it is the next, and when one was summed that had come before its turn.
        self._next, self._since, self._freed = -1, 0.0, 0.0
        # How many payloads were there, from when on.
        self._times: list[float] = []
        self._counts: list[int] = []

    def see(self, fact: facts.Entry, t: float) -> None:
        match fact:
            case facts.Grant(worker, ticket, _, turn) if turn is not None:
                self._open[ticket] = None
                self._held.setdefault(worker, set()).add(ticket)
                heappush(self._order, (turn, ticket))
            case facts.Commit(worker, ticket) if ticket in self._open:
                self._open[ticket] = t
                self._held[worker].discard(ticket)
                self._count(1, t)
            case facts.Fold(ticket) | facts.Drop(_, ticket) if ticket in self._open:
                self._summed(ticket, t)
            case facts.Apply():
                # The last of an update is in no fold.
                for part in fact.parts:
                    if part.ticket in self._open:
                        self._summed(part.ticket, t)
            case facts.Cancel(worker, ticket) | facts.Abandon(worker, ticket) if ticket in self._open:
                self._held[worker].discard(ticket)
                del self._open[ticket]
            case facts.Leave(worker):
                for ticket in self._held.pop(worker, ()):
                    self._open.pop(ticket, None)
            case _:
                return
        while self._order and self._order[0][1] not in self._open:
            heappop(self._order)
        following = self._order[0][1] if self._order else -1
        if following != self._next:
            self._next, self._since = following, t

    def _summed(self, ticket: int, t: float) -> None:
        committed = self._open.pop(ticket)
        if committed is not None:
            self._count(-1, t)
            self._freed = t if committed < t else self._freed

    def _count(self, change: int, t: float) -> None:
        if not self._open:
            # Of a round that is over.
            self._times, self._counts = [], []
            return
        self._counts.append((self._counts[-1] if self._counts else 0) + change)
        self._times.append(t)

    def let_in(self, ticket: int, ready: float, now: float) -> float:
        """When the payload came in that was ready then, and is committed now. Ask before `see` is given its commit."""
        place = bisect_right(self._times, ready)
        if ticket not in self._open or not place or self._counts[place - 1] < STAGED:
            return ready
        room = max(self._freed, self._since) if ticket == self._next else self._freed
        return min(room, now) if room > ready + ROUNDING else ready


class _LogReader:
    """Reads a log once, in order."""

    def __init__(self) -> None:
        self.lanes: dict[str, Lane] = {}
        self.reported = False
        self.seconds = 0.0
        # When the last ticket of a worker ended, or it joined; absent while it is away, or done.
        self._free: dict[str, float] = {}
        self._held: dict[str, dict[int, float]] = {}
        # Its last ticket was cancelled: until the next grant it may still work on it.
        self._wasted: set[str] = set()
        self._turns = Turns()
        # Kept commits without a fate: lane and number.
        self._pending: dict[int, tuple[Lane, int]] = {}

    def see(self, fact: facts.Entry, now: float) -> None:
        match fact:
            case facts.Join(worker):
                self.lanes.setdefault(worker, Lane(worker))
                self._free[worker], self._held[worker] = now, {}
            case facts.Grant(worker, ticket):
                self._granted(worker, ticket, now)
            case facts.Commit():
                self._committed(fact, now)
            case facts.Cancel(worker, ticket) | facts.Abandon(worker, ticket):
                self._lost(worker, ticket, now, cancelled=isinstance(fact, facts.Cancel))
            case facts.Apply(_, _, _, parts):
                for part in parts:
                    self._settled(part.ticket, "applied")
            case facts.Drop(_, ticket):
                self._settled(ticket, "dropped")
            case facts.Leave(worker) | facts.Done(worker):
                # What it did without a ticket since its last one is not known.
                self._free.pop(worker, None)
                self._wasted.discard(worker)
        self._turns.see(fact, now)

    def _granted(self, worker: str, ticket: int, now: float) -> None:
        self._held.setdefault(worker, {})[ticket] = now
        if worker in self._wasted:
            self._add(self.lanes[worker], [Stretch(WASTED, self._free.get(worker, now), now)])
            self._free[worker] = now
            self._wasted.discard(worker)

    def _committed(self, commit: facts.Commit, now: float) -> None:
        lane = self.lanes.setdefault(commit.worker, Lane(commit.worker))
        granted = self._held.get(commit.worker, {}).pop(commit.ticket, now)
        since = self._free.get(commit.worker, granted)
        self.reported |= commit.pull is not None
        self._add(lane, stretches_of(since, granted, now, commit, self._turns))
        if not lane.full:
            self._pending[commit.ticket] = lane, len(lane.commits)
            lane.commits.append((now, "pending"))
        self._end(lane, now)

    def _lost(self, worker: str, ticket: int, now: float, *, cancelled: bool) -> None:
        held = self._held.get(worker, {})
        oldest = next(iter(held), None)
        granted = held.pop(ticket, None)
        # The initial values' ticket is no grant; one that came ahead was not begun.
        if granted is None or ticket != oldest:
            return
        lane = self.lanes.setdefault(worker, Lane(worker))
        since = self._free.get(worker, granted)
        self._add(lane, [Stretch(WAITING, since, granted), Stretch(WASTED, max(since, granted), now)])
        if cancelled:
            self._wasted.add(worker)
        self._end(lane, now)

    def _end(self, lane: Lane, now: float) -> None:
        if not lane.full:
            lane.ends.append(now)
        self._free[lane.worker] = self.seconds = now

    def _add(self, lane: Lane, stretches: list[Stretch]) -> None:
        for stretch in stretches:
            if stretch.end > stretch.begin:
                lane.seconds[stretch.kind] += stretch.end - stretch.begin
                if not lane.full:
                    lane.stretches.append(stretch)

    def _settled(self, ticket: int, fate: str) -> None:
        lane, number = self._pending.pop(ticket, (None, 0))
        if lane is not None:
            lane.commits[number] = lane.commits[number][0], fate


def stretches_of(
    since: float, granted: float, now: float, commit: facts.Commit, turns: Turns
) -> list[Stretch]:
    """From the end of the ticket before, `since`, to the commit. Clocks that differ a little are cut to fit.

    `turns` knows all that came before the commit.
    """
    if commit.pull is None:
        return [Stretch(WAITING, since, granted), Stretch(UNREPORTED, max(since, granted), now)]
    compute = commit.compute or 0.0
    ahead = max(since, min(since + (commit.before or 0.0), now - commit.pull - compute))
    here = max(ahead, granted)
    pulled = min(here + commit.pull, now)
    computed = min(pulled + compute, now)
    let_in = turns.let_in(commit.ticket, computed, now)
    return [
        Stretch(COMPUTING, since, ahead),
        Stretch(WAITING, ahead, granted),
        Stretch(RECEIVING, here, pulled),
        Stretch(COMPUTING, pulled, computed),
        Stretch(TURN, computed, let_in),
        Stretch(SENDING, let_in, now),
    ]


def share_head(found: Timeline) -> list[str]:
    return ["of the time of", *(f"{kind} %" for kind in _kinds(found))]


def share_rows(found: Timeline) -> list[list[str]]:
    """The mean of all workers and the extremes, in percent of each one's time in the job; then worker by worker.

    Empty where no worker had a ticket, or none reported what it did.
    """
    lanes = [lane for lane in found.lanes if any(lane.seconds.values())]
    if not lanes or not found.reported:
        return []
    kinds = _kinds(found)
    table = [[f"{len(lanes)} workers", *(_spread([lane.shares[kind] for lane in lanes]) for kind in kinds)]]
    if 1 < len(lanes) <= WORKER_LINES:
        for lane in sorted(lanes, key=lambda lane: worker_order(lane.worker)):
            table.append([lane.worker, *(_percent(lane.shares[kind]) for kind in kinds)])
    return table


def _kinds(found: Timeline) -> list[str]:
    """Those that occur."""
    return [kind for kind in KINDS if any(lane.seconds[kind] for lane in found.lanes)]


def _spread(parts: list[float]) -> str:
    mean = _percent(fmean(parts))
    return mean if len(parts) == 1 else f"{mean} ({_percent(min(parts))}..{_percent(max(parts))})"


def _percent(part: float) -> str:
    return f"{100 * part:.1f}"
