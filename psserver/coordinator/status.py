"""Status of the job: what each worker does, and what each waiting worker waits for."""

from dataclasses import dataclass, field
from itertools import islice

from psserver.coordinator.coordinator import Coordinator
from psserver.coordinator.roster import NAMED_LIMIT, Member, named
from psserver.coordinator.waits import explained
from psserver.policies import Waiting

# Limit of workers with a line of their own; the others are counted. A status is read four times a second, so its size
# and time must not grow with the number of workers.
LISTED_LIMIT = 128


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """`seconds`: how long it has been in `state`. `waiting_for` is empty unless it waits."""

    name: str
    incarnation: int
    state: str
    seconds: float
    waiting_for: str = ""
    releasers: tuple[str, ...] = ()
    ticket: int = 0
    base_version: int = 0
    committed: int = 0
    applied: int = 0
    dropped: int = 0
    mean_staleness: float = 0.0
    max_staleness: int = 0


@dataclass(frozen=True, slots=True)
class JobReport:
    phase: str
    version: int
    committed: int
    applied: int
    dropped: int
    samples: int
    loss: float | None
    mean_staleness: float
    max_staleness: int
    note: str
    workers: list[WorkerReport] = field(default_factory=list)
    # The number of workers without a line, present and departed.
    unlisted: int = 0

    @property
    def pending(self) -> int:
        return self.committed - self.applied - self.dropped


def report(coordinator: Coordinator, now: float) -> JobReport:
    """Return a consistent picture of the whole job."""
    roster = coordinator.state.roster
    workers = [_worker(coordinator, member, now) for member in roster.by_rank()[:LISTED_LIMIT]]
    departed = (name for name in reversed(roster.tallies) if name not in roster.present)
    newest = list(islice(departed, LISTED_LIMIT - len(workers)))
    workers += [_departed(coordinator, name, now) for name in reversed(newest)]
    tallies = roster.tallies.values()
    histogram = [(s, count) for t in tallies for s, count in t.staleness.items()]
    applied = sum(count for _, count in histogram)
    return JobReport(
        phase=phase(coordinator),
        version=coordinator.state.version,
        committed=sum(t.committed for t in tallies),
        applied=applied,
        dropped=sum(t.dropped for t in tallies),
        samples=sum(t.samples for t in tallies),
        loss=coordinator.state.loss,
        mean_staleness=sum(s * count for s, count in histogram) / applied if applied else 0.0,
        max_staleness=max((s for s, _ in histogram), default=0),
        note="; ".join(filter(None, (_note(coordinator, now), coordinator.state.kept_back.sentence()))),
        workers=workers,
        unlisted=len(roster.tallies) - len(workers),
    )


def phase(coordinator: Coordinator) -> str:
    if coordinator.state.stopped is not None:
        return "stopped" if coordinator.state.over else "stopping"
    if coordinator.state.started:
        return "training"
    if coordinator.state.resting:
        return "between phases"
    if not coordinator.state.initialised and any(
        t.initialise for t in coordinator.state.tickets.in_state("open")
    ):
        return "initialising"
    return "waiting for workers"


def holdup(coordinator: Coordinator, now: float) -> tuple[float, str] | None:
    """Return the longest current wait in seconds, and the sentence that explains it; None if no worker waits."""
    waiting = [m for m in coordinator.state.roster.by_rank() if m.state == "waiting"]
    if not waiting or coordinator.state.stopped is not None:
        return None
    longest = min(waiting, key=lambda m: m.since)
    sentence, _ = explain(coordinator, longest, now)
    return now - longest.since, f"{longest.worker} has waited {now - longest.since:.1f} s for {sentence}"


def explain(coordinator: Coordinator, member: Member, now: float) -> tuple[str, tuple[str, ...]]:
    """Return what a waiting member waits for, and the workers that can release it.

    The sentence completes "it waits for ..." and says of each releaser what it is doing and since when.
    """
    waiting = waited_for(coordinator, member)
    event, releasers = waiting.event, waiting.releasers
    parts = [_doing(coordinator, name, now) for name in releasers[:NAMED_LIMIT]]
    if len(releasers) > NAMED_LIMIT:
        parts.append(f"and {len(releasers) - NAMED_LIMIT} more")
    left = coordinator.remaining(waiting.timer, now) if waiting.timer else None
    if left is not None:
        parts.append(f"or at the latest in {left:.1f} s, when a timer fires")
    return (f"{event} ({'; '.join(parts)})" if parts else event), releasers[:NAMED_LIMIT]


def standstill(coordinator: Coordinator, now: float) -> str:
    """Return what the present members do, longest first, for a job in which no version comes."""
    present = sorted(coordinator.state.roster.present.values(), key=lambda member: member.since)
    busy = [member for member in present if member.state != "done"]
    parts = [_doing(coordinator, member.worker, now) for member in busy[:NAMED_LIMIT]]
    if len(busy) > NAMED_LIMIT:
        parts.append(f"and {len(busy) - NAMED_LIMIT} more")
    return "; ".join(parts)


def waited_for(coordinator: Coordinator, member: Member) -> Waiting:
    """Return what a waiting member waits for, and the workers that can release it."""
    if not coordinator.state.initialised:
        holders = [t.worker for t in coordinator.state.tickets.in_state("open") if t.initialise]
        return Waiting("the initial values of the variables", tuple(holders))
    if not coordinator.state.started:
        present = coordinator.state.roster.by_rank()
        releasers = tuple(
            m.worker
            for m in present
            if m.requested is None and (m.state != "done" or coordinator.state.resting)
        )
        wanted = (
            len(coordinator.state.roster.expected())
            if coordinator.state.resting
            else coordinator.terms.quorum
        )
        return Waiting(f"{coordinator.missing} more of {wanted} workers to be ready", releasers)
    return explained(coordinator.policy, member.worker)


def _doing(coordinator: Coordinator, name: str, now: float) -> str:
    member = coordinator.state.roster.present.get(name)
    if member is None:
        return f"{name} has left"
    if member.absent_since is not None:
        left = coordinator.terms.grace - (now - member.absent_since)
        return f"{name} lost its connection, given up in {max(left, 0):.1f} s"
    for ticket in coordinator.state.tickets.open_of(name):
        seconds = now - ticket.granted_at
        if ticket.initialise:
            return f"{name} has been bringing them with ticket {ticket.number} for {seconds:.1f} s"
        return f"{name} has been computing ticket {ticket.number} (from version {ticket.base}) for {seconds:.1f} s"
    return f"{name} has been {member.state} for {now - member.since:.1f} s"


# Limit of waits in a note; the others are counted.
NOTED_LIMIT = 3


def _note(coordinator: Coordinator, now: float) -> str:
    held = [wait.sentence(now) for wait in coordinator.waits(now)]
    if coordinator.state.stopped is not None:
        more = [f"and for {len(held) - NOTED_LIMIT} more"] if len(held) > NOTED_LIMIT else []
        return "; ".join([coordinator.state.stopped.reason, *held[:NOTED_LIMIT], *more])
    if coordinator.state.resting:
        here = coordinator.state.roster.expected()
        begun = sum(member.state != "done" for member in here)
        more = [f"and for {len(held) - NOTED_LIMIT} more"] if len(held) > NOTED_LIMIT else []
        return "; ".join(
            [
                f"this fit is done; {begun} of {len(here)} workers have begun another one",
                *held[:NOTED_LIMIT],
                *more,
            ]
        )
    to_join = coordinator.terms.quorum - coordinator.state.roster.arrived
    if not coordinator.state.started and to_join > 0:
        return f"waiting for {to_join} of {coordinator.terms.quorum} workers to join"
    present, unfinished = coordinator.state.roster.here(), coordinator.state.roster.unfinished
    if unfinished and not present:
        gone, patience = named(unfinished), coordinator.terms.idle_timeout
        left = max(patience - (now - (coordinator.state.roster.empty_since or now)), 0.0)
        end = (
            f"the job ends in {left:.1f} s, unless one comes back"
            if patience
            else "a worker may come at any time"
        )
        return f"{gone} left before all data was trained, and nobody is here: {end}"
    if unfinished and all(m.state == "done" for m in present):
        since = max(m.since for m in present) + coordinator.terms.worker_timeout
        back = max(unfinished.values()) + coordinator.rejoin_limit
        gone, left = named(unfinished), max(since - now, back - now, 0.0)
        return f"{gone} left before all data was trained; the job ends in {left:.1f} s, unless it comes back"
    return held[0] if held else ""


def _worker(coordinator: Coordinator, member: Member, now: float) -> WorkerReport:
    sentence = ""
    releasers: tuple[str, ...] = ()
    if member.state == "waiting":
        sentence, releasers = explain(coordinator, member, now)
    lost = member.absent_since is not None and member.ever_connected
    since = member.absent_since if lost and member.absent_since is not None else member.since
    opened = coordinator.state.tickets.open_of(member.worker)
    return _tallied(
        coordinator,
        member.worker,
        member.incarnation,
        "lost" if lost else member.state,
        now - since,
        sentence,
        releasers,
        opened[0].number if opened else 0,
        opened[0].base if opened else 0,
    )


def _departed(coordinator: Coordinator, name: str, now: float) -> WorkerReport:
    tally = coordinator.state.roster.tallies[name]
    left = coordinator.state.roster.unfinished.get(name)
    state = "done" if left is None and tally.arrived else "left"
    return _tallied(coordinator, name, tally.incarnations - 1, state, now - left if left else 0.0)


def _tallied(
    coordinator: Coordinator,
    name: str,
    incarnation: int,
    state: str,
    seconds: float,
    waiting_for: str = "",
    releasers: tuple[str, ...] = (),
    ticket: int = 0,
    base_version: int = 0,
) -> WorkerReport:
    tally = coordinator.state.roster.tally(name)
    mean = sum(s * n for s, n in tally.staleness.items()) / tally.applied if tally.applied else 0.0
    return WorkerReport(
        name,
        incarnation,
        state,
        seconds,
        waiting_for,
        releasers,
        ticket,
        base_version,
        tally.committed,
        tally.applied,
        tally.dropped,
        mean,
        max(tally.staleness, default=0),
    )
