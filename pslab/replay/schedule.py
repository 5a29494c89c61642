"""The decision log as records, and as a schedule: what workers did, without the policy's decisions.

A schedule has the order in which workers asked, finished a computation, or left. Grants, cancels and updates are the
policy's and are left out. Two things are not in the log and are inferred:

- A worker asks right after its commit (as ps-worker does, in the same message), or, for a ticket that was granted
  ahead, right before the grant. Tickets are numbered in the order of requests, so the order of all requests that were
  granted is known.
- A worker whose ticket was cancelled still finishes the computation, and asks again then.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import attrgetter

from pslab.runs.fold import Fold
from pslab.runs.folder import Run, RunError
from psserver.coordinator import Record
from pswire import protocol
from pswire.decisions import entries


@dataclass(frozen=True, slots=True)
class Arrive:
    """An incarnation of a worker joins."""

    t: float
    worker: str
    incarnation: int
    rank: int


@dataclass(frozen=True, slots=True)
class Ask:
    """A worker asks for a ticket. `ahead`: for the next one, while it works on one."""

    t: float
    worker: str
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class Finish:
    """A computation ends. `known`: it was committed; otherwise its ticket was cancelled, and its result is not known.

    `learning_rate`: the one that the worker sets with its commit, or None.
    """

    t: float
    worker: str
    batch: int
    samples: int
    loss: float = math.nan
    norm: float = math.nan
    known: bool = True
    times: protocol.Times = protocol.UNTOLD
    learning_rate: float | None = None


@dataclass(frozen=True, slots=True)
class GiveUp:
    """A worker abandons its ticket."""

    t: float
    worker: str
    reason: str


@dataclass(frozen=True, slots=True)
class Initialised:
    """A worker has pushed the initial values."""

    t: float
    worker: str


@dataclass(frozen=True, slots=True)
class Done:
    """A worker has no more data."""

    t: float
    worker: str


@dataclass(frozen=True, slots=True)
class Depart:
    """A worker leaves, or is given up."""

    t: float
    worker: str
    reason: str


Move = Arrive | Ask | Finish | GiveUp | Initialised | Done | Depart


@dataclass(slots=True)
class _Placed:
    """A move that comes after entry `place` of the log; `order` sorts the moves at one place."""

    place: int
    order: int
    move: Move


@dataclass(slots=True)
class _Request:
    """A request that was granted. It came after entry `after` at the earliest, and after `before` at the latest.

    `voided`: the worker's ticket before was cancelled.
    """

    ticket: int
    worker: str
    after: int
    before: int
    voided: bool
    ahead: bool = False


def schedule(steps: Iterable[Record]) -> list[Move]:
    """Return all moves up to the stop, in order."""
    log = list(steps)
    placed: list[_Placed] = []
    requests: list[_Request] = []
    last: dict[str, int] = {}
    granted: dict[str, int] = {}
    voided: set[str] = set()
    for step in log:
        entry = step.entry
        if isinstance(entry, entries.Stop):
            break
        match entry:
            case entries.Grant(worker, ticket, ahead=ahead):
                after = granted[worker] if ahead else last[worker]
                voided_before = worker in voided and not ahead
                requests.append(_Request(ticket, worker, after, step.index - 1, voided_before, bool(ahead)))
                granted[worker] = step.index
                voided.discard(worker)
            case entries.Initialise(worker, ticket):
                # The worker that brings the initial values is chosen when it asks.
                requests.append(_Request(ticket, worker, step.index - 1, step.index - 1, False))
            case entries.Cancel(worker):
                voided.add(worker)
            case entries.Leave(worker):
                voided.discard(worker)
        if isinstance(entry, entries.Rate):
            # It belongs to the commit right before.
            finish = placed[-1].move
            assert isinstance(finish, Finish)
            placed[-1].move = replace(finish, learning_rate=entry.learning_rate)
        move = _move(step)
        if move is not None:
            placed.append(_Placed(step.index, 0, move))
            last[move.worker] = step.index
        elif isinstance(entry, entries.Cancel):
            last[entry.worker] = step.index
    placed += _asked(log, requests)
    return [item.move for item in sorted(placed, key=attrgetter("place", "order"))]


def _asked(log: list[Record], requests: list[_Request]) -> list[_Placed]:
    """Place each request as early as its worker and the order of tickets allow.

    After a cancel, place it as late: the worker was still busy with the cancelled ticket. The same for a request ahead:
    if it is granted, it is granted at once.
    """
    ordered = sorted(requests, key=attrgetter("ticket"))
    places = list(accumulate((request.after for request in ordered), max))
    for number in reversed(range(len(ordered))):
        if ordered[number].voided or ordered[number].ahead:
            following = places[number + 1] if number + 1 < len(ordered) else len(log)
            places[number] = max(places[number], min(ordered[number].before, following))
    found: list[_Placed] = []
    samples = _usual_samples(log)
    for order, (place, request) in enumerate(zip(places, ordered, strict=True), start=1):
        # A request right before its grant has the time of the grant.
        late = request.voided or request.ahead
        t = log[place + 1 if late and place == request.before else place].t
        if request.voided:
            lost = Finish(t, request.worker, 0, samples.get(request.worker, 0), known=False)
            found.append(_Placed(place, 2 * order - 1, lost))
        found.append(_Placed(place, 2 * order, Ask(t, request.worker, request.ahead)))
    return found


def _usual_samples(log: list[Record]) -> dict[str, int]:
    """Return the samples of each worker's first commit."""
    found: dict[str, int] = {}
    for step in log:
        if isinstance(step.entry, entries.Commit):
            found.setdefault(step.entry.worker, step.entry.samples)
    return found


def _move(step: Record) -> Move | None:
    match step.entry:
        case entries.Join(worker, incarnation, rank):
            return Arrive(step.t, worker, incarnation, rank)
        case entries.Install(worker):
            return Initialised(step.t, worker)
        case entries.Commit(worker, _, batch, samples, loss, norm) as commit:
            times = protocol.Times(commit.pull, commit.compute, commit.before)
            return Finish(step.t, worker, batch, samples, loss, norm, times=times)
        case entries.Abandon(worker, _, reason):
            return GiveUp(step.t, worker, reason)
        case entries.Done(worker):
            return Done(step.t, worker)
        case entries.Leave(worker, reason):
            return Depart(step.t, worker, reason)
    return None


def read_records(run: Run) -> list[Record]:
    """Return the whole log. Raises RunError, which names the line, if one is unreadable or out of place.

    The log of a run without a summary, which was cut off or is still running, is read up to its last whole line.
    """
    path, records, joined = run.log, list[Record](), set[str]()
    for read in run.decisions():
        place, fact = f"{path}:{read.line}", read.fact
        if read.i != len(records):
            raise RunError(f"{place}: expected entry {len(records)}, got {read.i}: the log was edited")
        if not records and not isinstance(fact, entries.Job):
            break
        worker = getattr(fact, "worker", None)
        if isinstance(fact, entries.Join):
            joined.add(fact.worker)
        elif worker is not None and worker not in joined:
            raise RunError(f"{place}: {fact.kind} of {worker}, who has not joined: the log was edited")
        records.append(Record(read.i, read.t, fact))
    if not records:
        raise RunError(f"{path}: expected a job entry first: the log is empty or was edited")
    if run.stopped and not any(isinstance(record.entry, entries.Stop) for record in records):
        raise RunError(
            f"{path}: has no stop entry, though the job has stopped: the log was cut off or edited"
        )
    return records


def job_of(records: Sequence[Record]) -> entries.Job:
    """Return entry 0 of a log."""
    job = records[0].entry
    assert isinstance(job, entries.Job)
    return job


def model_of(records: Sequence[Record]) -> entries.Model:
    """Return the model that a log settles; one without a name or an optimizer if it ends before."""
    found = (each.entry for each in records if isinstance(each.entry, entries.Model))
    return next(found, entries.Model("", {}))


def fold_of(records: Sequence[Record]) -> Fold:
    """Return the state after the whole log."""
    return Fold.of((record.entry, record.t) for record in records)


def servers_of(records: Sequence[Record]) -> int:
    """Return the number of servers at the end: a job may go on with another number."""
    job = fold_of(records).job
    assert job is not None
    return job.servers
