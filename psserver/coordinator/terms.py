"""The terms that a job was started with, and how it ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field

# Limit of tickets in one generation.
TICKETS = 10**9


@dataclass(frozen=True, slots=True)
class Planned:
    """A change of the experiment's plan, due after `versions` versions."""

    name: str
    knobs: Mapping[str, object]
    versions: int
    why: str = ""
    # Factor of the job's learning rate from then on; None: as it is.
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class Extent:
    """How much data a worker has."""

    epochs: int
    batches: int


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a worker proposes that the job trains; the first initial values settle it.

    `variables`: the fingerprint of the model's plan. `optimizer`: its name and knobs. `transfer`: the seconds that the
    largest payload may be under way.
    """

    variables: str = ""
    optimizer: dict[str, object] = field(default_factory=dict)
    transfer: float = 0.0


@dataclass(frozen=True, slots=True)
class JobTerms:
    """The terms that a job was started with. Times in seconds."""

    job: str
    servers: int = 1
    # Each has a part of the data; they receive the number as worker_count.
    workers: int = 1
    seed: int = 0
    # The longest time that others wait for a lost worker.
    worker_timeout: float = 10.0
    # Seconds without any worker after which the job ends; 0: never.
    idle_timeout: float = 600.0
    # Number of ready workers at which grants begin; 0: all `workers`.
    min_workers: int = 0
    # Limit of worker names over the whole job; 0: none.
    max_workers: int = 0
    # The only names that may join; empty: any.
    allowed: tuple[str, ...] = ()
    # Stop at this version; 0: when the data ends.
    versions: int = 0
    # Seconds after which a member that keeps a ticket is evicted. 0: never; None: a multiple of the usual step, and
    # only while another worker waits for it.
    ticket_timeout: float | None = None
    # A checkpoint is due after this number of versions, or of seconds with a new version; 0: not for that reason.
    checkpoint_versions: int = 0
    checkpoint_seconds: float = 0.0
    # The number of versions in a row of which much was kept back (`psserver.coordinator.finite`) that ends the job.
    nonfinite_limit: int = 10
    # The jobs whose workers alone may join this one, which follows them; empty: anybody may.
    predecessors: tuple[str, ...] = ()
    # How often its servers have resumed from a checkpoint. Ticket numbers of two generations never overlap.
    generation: int = 0
    # Seconds after which a resumed job begins with the workers that have come back; 0: it waits for all.
    regather: float = 0.0
    # Whether a job succeeds in which a worker left before its data ended.
    allow_missing: bool = True
    # Changes of the policy, in order.
    plan: tuple[Planned, ...] = ()

    @property
    def quorum(self) -> int:
        """The number of workers that the start waits for."""
        return min(self.min_workers or self.workers, self.workers)

    @property
    def checkpoints(self) -> bool:
        """Whether the job takes checkpoints."""
        return bool(self.checkpoint_versions or self.checkpoint_seconds)

    @property
    def first_ticket(self) -> int:
        """The first ticket number, above all of former generations: a late message cannot name a new ticket."""
        return self.generation * TICKETS + 1

    @property
    def grace(self) -> float:
        """Seconds that a broken connection has to come back.

        A third of `worker_timeout`: detecting that a silent connection is dead takes the other two thirds (keep-alive
        interval and keep-alive timeout).
        """
        return self.worker_timeout / 3

    # Limits for members that are alive but do not do what the job waits for. All scale with worker_timeout, so short
    # steps are not held up for long and slow machines get time.

    @property
    def leave_limit(self) -> float:
        """Seconds after the stop for the current step and the Leave."""
        return 6 * self.worker_timeout

    @property
    def report_limit(self) -> float:
        """Seconds after the stop for the worker that evaluates the last version, besides its transfer."""
        return 60 * self.worker_timeout

    @property
    def initialise_limit(self) -> float:
        """Seconds for the worker that was asked for the initial values, besides their transfer."""
        return 30 * self.worker_timeout

    @property
    def least_ticket_limit(self) -> float:
        """Seconds that a ticket has at least, besides two transfers, if its limit is a multiple of the usual step."""
        return 6 * self.worker_timeout


@dataclass(frozen=True, slots=True)
class Stopped:
    """`cause`: "done", "missing" (a worker left before its data ended), "empty", "versions", "policy", "abandoned",
    "replaced", "server", "untrusted", "diverged" or the name of a signal."""

    reason: str
    version: int
    success: bool
    cause: str
    at: float

    @property
    def in_order(self) -> bool:
        """Whether the present workers have done their part, so that the last version is evaluated and saved."""
        return self.success or self.cause == "missing"
