"""The saved state of a coordinator, as plain data."""

from dataclasses import dataclass, field

from psserver.coordinator.changes import ChangeState
from psserver.coordinator.members.functions import Function
from psserver.coordinator.members.roster import Member
from psserver.coordinator.progress import Extent
from psserver.coordinator.terms import Stopped
from psserver.coordinator.tickets.table import Ticket
from psserver.coordinator.work.queue import QueueState
from psserver.policies import Part
from pswire.records import from_plain, to_plain


@dataclass(frozen=True, slots=True)
class TallyState:
    """A `Tally` with its worker's name. `staleness`: (staleness, count) in the order of first occurrence."""

    worker: str
    committed: int
    applied: int
    dropped: int
    samples: int
    staleness: list[tuple[int, int]]
    next_batch: int
    incarnations: int
    granted: int
    arrived: bool
    sessions: list[str]
    granted_at: float | None
    lost: tuple[int, float] | None = None
    phase_batch: int = 0
    missed: int = 0
    weight: float = 0.0


@dataclass(frozen=True, slots=True)
class CoordinatorState:
    """Everything except the policy's code and the terms of the process (timeouts, when to stop).

    `workers`, `servers`, `seed` and `optimizer` are those of the job; the state of another job is refused. To resume
    on another number of servers, use `replace(state, servers=...)` together with `psserver.shard.reshard`.
    `entries`: number of the next log entry. `began` and all other times are seconds of
    the clock of the process that saved it. `tickets`: open and pending ones in the order of their grants.
    `settled`: the remembered ones, each worker's oldest first. `folded`: parts in the shards' open sum,
    in order. `refused`: the latest run of refused updates, with contributions of `refused_workers`. `policy`, `knobs`,
    `policy_state`: of the policy that decides; `changes`: what led to it. Sessions authenticate a worker's process, so
    keep a saved state as private as a key.
    """

    workers: int
    servers: int
    seed: int
    optimizer: dict[str, object]
    policy: str
    knobs: dict[str, object]
    policy_state: dict[str, object]
    entries: int
    version: int
    initialised: bool
    started: bool
    stopped: Stopped | None
    evaluator: str | None
    stop_index: int
    saved_version: int
    saved_at: float
    loss: float | None
    lr_scale: float
    usual_step: float | None
    began: float
    next_number: int
    tickets: list[Ticket]
    settled: list[Ticket]
    folded: list[Part]
    refused: int
    refused_workers: list[str]
    members: list[Member]
    tallies: list[TallyState]
    prepared: list[str]
    unfinished: list[tuple[str, float]]
    empty_since: float | None
    # None if the job deals no work units.
    work: QueueState | None = None
    # When the first session was up.
    first_session: float | None = None
    resting: bool = False
    phase_ended: str = ""
    phase: int = 0
    undeclared: bool = False
    # Timers that are set: (tag, when due in microseconds of the job), in the order of setting.
    timers: list[tuple[str, int]] = field(default_factory=list)
    timers_paused_since: int | None = None
    timers_idle: int = 0
    changes: ChangeState = field(default_factory=ChangeState)
    # Until the start of a job that resumed: when it did, and who is expected.
    resumed_at: float | None = None
    expected: list[str] = field(default_factory=list)
    # (worker, how much data it has).
    extents: list[tuple[str, Extent]] = field(default_factory=list)
    phase_ends: str = ""
    function: Function = Function()
    # The number of updates that the shards were asked about.
    trials: int = 0

    def to_json(self) -> dict[str, object]:
        """Return plain data for `json.dumps(..., allow_nan=False)`."""
        plain: dict[str, object] = to_plain(self)
        return plain

    @classmethod
    def from_json(cls, data: object) -> "CoordinatorState":
        """Read the state. Raises StateError for missing or unknown fields and for values of another type."""
        return from_plain(cls, data, "coordinator state")
