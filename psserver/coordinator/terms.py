"""What a job was started with, and how it ended."""

from collections.abc import Mapping
from dataclasses import dataclass

# Of one generation, at most.
TICKETS = 10**9


@dataclass(frozen=True, slots=True)
class JobTerms:
    """What a job was started with. Times in seconds."""

    job: str
    optimizer: Mapping[str, object]
    servers: int = 1
    # Of whom each has a part of the data; sent to them as worker_count.
    workers: int = 1
    seed: int = 0
    # Others never wait longer than this for a worker that is gone.
    worker_timeout: float = 10.0
    # Seconds without any worker after which the job gives up; 0: never.
    idle_timeout: float = 600.0
    # Grants begin when so many are ready; 0: all `workers`.
    min_workers: int = 0
    # Names of workers in the life of the job, at most; 0: no limit.
    max_workers: int = 0
    # The only names that may join; empty: any.
    allowed: tuple[str, ...] = ()
    # Stop at this version; 0: when the data ends.
    versions: int = 0
    # Seconds after which a member that keeps a ticket is given up. 0: never; None: a multiple of the usual step, and
    # only while somebody waits for it.
    ticket_timeout: float | None = None
    # A checkpoint is due after so many versions, and after so many seconds with a new one; 0: never for that reason.
    checkpoint_versions: int = 0
    checkpoint_seconds: float = 0.0
    # So many updates in a row that would not be finite end the job.
    nonfinite_limit: int = 10
    # How often its servers have begun again from what is saved: no two generations give the same numbers to tickets.
    generation: int = 0
    # Seconds after which a job that goes on begins with the workers that have come back; 0: with all that it had.
    regather: float = 0.0
    # A job in which a worker has left before its data ended succeeds all the same.
    allow_missing: bool = True
    # How long the largest payload may be under way.
    transfer: float = 0.0

    @property
    def quorum(self) -> int:
        """How many workers the start waits for."""
        return min(self.min_workers or self.workers, self.workers)

    @property
    def checkpoints(self) -> bool:
        """The job takes some."""
        return bool(self.checkpoint_versions or self.checkpoint_seconds)

    @property
    def first_ticket(self) -> int:
        """What is under way in the name of a former generation's ticket must find none of that number."""
        return self.generation * TICKETS + 1

    @property
    def grace(self) -> float:
        """How long a broken connection may take to come back.

        A third: noticing that a silent connection is dead takes the other two
        (keep-alive interval and keep-alive timeout).
        """
        return self.worker_timeout / 3

    # Patience with members that live and do not do what the job waits for. All from worker_timeout: a run of
    # short steps is not held up for long, one on slow machines is given time.

    @property
    def leave_limit(self) -> float:
        """After the stop, for the step that is under way and the Leave."""
        return 6 * self.worker_timeout

    @property
    def report_limit(self) -> float:
        """After the stop, for the one that evaluates the last version."""
        return 60 * self.worker_timeout + self.transfer

    @property
    def initialise_limit(self) -> float:
        """For the initial values, from the one that is asked for them."""
        return 30 * self.worker_timeout + self.transfer

    @property
    def least_ticket_limit(self) -> float:
        """The least where the limit is a multiple of the usual step."""
        return 6 * self.worker_timeout + 2 * self.transfer


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
        """The workers that are there have done their part: the last version is evaluated and saved."""
        return self.success or self.cause == "missing"
