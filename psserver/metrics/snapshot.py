"""The numbers of one moment: copied by the thread that owns them, rendered by another."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from psserver.coordinator import Coordinator
from psserver.coordinator.status import holdup, phase
from psserver.metrics.counts import Counts
from psserver.service.job.job import Job
from psserver.service.store.host import ShardHost

# Workers with series of their own, in the order in which they joined; all others are one, `OTHERS`.
MOST_WORKERS = 64
OTHERS = "others"


@dataclass(slots=True)
class WorkerNumbers:
    """Of one worker, or of all that have no series of their own."""

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


@dataclass(frozen=True, slots=True)
class JobNumbers:
    """Of the coordinator. `held_up`: seconds of the longest present wait. `states`: workers by state."""

    phase: str
    version: int
    entries: int
    held_up: float
    loss: float | None
    states: Counter[str]
    workers: Mapping[str, WorkerNumbers]
    kinds: Counter[str]
    lost: int
    rejoined: int


@dataclass(frozen=True, slots=True)
class ShardNumbers:
    """Of one server's shard. Bytes are those of float32 in its memory."""

    executed: int
    received: int
    served: int
    staged: int
    buffers: int
    payload_bytes: int


def job_numbers(job: Job, counts: Counts) -> JobNumbers:
    return job.look(lambda coordinator, now: numbers_from(coordinator, counts, now))


def numbers_from(coordinator: Coordinator, counts: Counts, now: float) -> JobNumbers:
    held = holdup(coordinator, now)
    states = Counter("lost" if m.absent_since is not None else m.state for m in coordinator.roster.by_rank())
    workers: dict[str, WorkerNumbers] = {}
    for number, name in enumerate(counts.workers):
        label = name if number < MOST_WORKERS else OTHERS
        _add(workers.setdefault(label, WorkerNumbers()), coordinator, counts, name)
    return JobNumbers(
        phase=phase(coordinator),
        version=coordinator.version,
        entries=coordinator.entries,
        held_up=held[0] if held else 0.0,
        loss=coordinator.loss,
        states=states,
        workers=workers,
        kinds=counts.kinds.copy(),
        lost=counts.lost,
        rejoined=counts.rejoined,
    )


def _add(numbers: WorkerNumbers, coordinator: Coordinator, counts: Counts, name: str) -> None:
    logged, tally = counts.workers[name], coordinator.roster.tally(name)
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


def shard_numbers(host: ShardHost) -> ShardNumbers:
    return host.owner.ask(lambda: _shard_numbers(host))


def _shard_numbers(host: ShardHost) -> ShardNumbers:
    state = host.state
    shard = state.shard
    return ShardNumbers(
        executed=state.executed,
        received=state.received,
        served=state.served,
        staged=shard.staging.held if shard else 0,
        buffers=shard.arena.buffers if shard else 0,
        payload_bytes=host.nbytes,
    )
