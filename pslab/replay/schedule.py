"""A log without the policy's decisions: which worker asked, finished a computation, or left, in order.

Grants, cancels and updates are the policy's and are left out. What the log
does not say is inferred:

- A worker asks right after its commit (as ps-worker does, in the same
  message), or, for a ticket that was granted ahead, right before that. Tickets
  are numbered as they are asked for, so the order of all requests that were
  granted is known.
- A worker whose ticket was cancelled finishes the computation all the same
  and asks again then.
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
    t: float
    worker: str
    incarnation: int
    rank: int


@dataclass(frozen=True, slots=True)
class Ask:
    """`ahead`: while it works on a ticket, for the one after it."""

    t: float
    worker: str
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class Finish:
    """A computation ends. `known`: it was committed; else its ticket was cancelled, and nobody saw the result."""

    t: float
    worker: str
    batch: int
    samples: int
    loss: float = math.nan
    norm: float = math.nan
    known: bool = True
    times: protocol.Times = protocol.UNTOLD
    # That it sets.
    learning_rate: float | None = None


@dataclass(frozen=True, slots=True)
class GiveUp:
    t: float
    worker: str
    reason: str


@dataclass(frozen=True, slots=True)
class Initialised:
    """The initial values are on the servers."""

    t: float
    worker: str


@dataclass(frozen=True, slots=True)
class Done:
    t: float
    worker: str


@dataclass(frozen=True, slots=True)
class Depart:
    t: float
    worker: str
    reason: str


Move = Arrive | Ask | Finish | GiveUp | Initialised | Done | Depart


@dataclass(slots=True)
class _Placed:
    """`place`: behind which entry of the log a move comes; `order` is that of moves at one place."""

    place: int
    order: int
    move: Move


@dataclass(slots=True)
class _Request:
    ticket: int
    worker: str
    # The entries that it came behind, at the earliest and at the latest.
    after: int
    before: int
    voided: bool
    ahead: bool = False


def schedule(steps: Iterable[Record]) -> list[Move]:
    """All moves up to the stop, in order."""
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
                # Who is to bring the initial values is settled in the moment of the request.
                requests.append(_Request(ticket, worker, step.index - 1, step.index - 1, False))
            case entries.Cancel(worker):
                voided.add(worker)
            case entries.Leave(worker):
                voided.discard(worker)
        if isinstance(entry, entries.Rate):
            # It came with the commit right before.
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
    """Each request as early as its worker and the order of tickets allow.

    After a cancel, as late: the worker was busy with what had become void. Ahead, too: it is granted at once
    where it is granted at all, and a worker that asks ahead says no more when.
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
        # A request right before its grant is as late as that.
        late = request.voided or request.ahead
        t = log[place + 1 if late and place == request.before else place].t
        if request.voided:
            lost = Finish(t, request.worker, 0, samples.get(request.worker, 0), known=False)
            found.append(_Placed(place, 2 * order - 1, lost))
        found.append(_Placed(place, 2 * order, Ask(t, request.worker, request.ahead)))
    return found


def _usual_samples(log: list[Record]) -> dict[str, int]:
    """Of each worker's first commit."""
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
    """The whole log in order. Raises RunError naming the line that cannot be read or is out of place.

    Of a run without a summary, which was cut off or goes on: up to its last whole line.
    """
    path, records, joined = run.log, list[Record](), set[str]()
    for read in run.decisions():
        place, fact = f"{path}:{read.line}", read.fact
        if read.i != len(records):
            raise RunError(f"{place}: expected entry {len(records)}, got {read.i}: the log was edited")
        if not records and not isinstance(fact, entries.Job):
            break
        if isinstance(fact, entries.Job) and fact.format != entries.FORMAT:
            raise RunError(
                f"{path}: expected format {entries.FORMAT}, got {fact.format}: made by another release"
            )
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
    """Entry 0 of a log."""
    job = records[0].entry
    assert isinstance(job, entries.Job)
    return job


def fold_of(records: Sequence[Record]) -> Fold:
    """What the whole log says."""
    return Fold.of((record.entry, record.t) for record in records)


def servers_of(records: Sequence[Record]) -> int:
    """How many there were at the end: a job may go on with another number."""
    job = fold_of(records).job
    assert job is not None
    return job.servers
