"""The read-only interface of a coordinator."""

from collections.abc import Mapping

from psserver.coordinator.ledger import Ledger
from psserver.coordinator.lifecycle import Lifecycle
from psserver.coordinator.members.roster import Roster
from psserver.coordinator.members.waits import Wait, waits
from psserver.coordinator.policy_driver import PolicyDriver
from psserver.coordinator.progress import Extent
from psserver.coordinator.terms import Stopped
from psserver.coordinator.tickets.contributions import present_rate
from psserver.coordinator.tickets.table import TicketTable
from psserver.coordinator.work.queue import WorkQueue
from psserver.policies import Policy, microseconds


class CoordinatorView:
    """Reads the coordinator's parts, between two inputs."""

    def __init__(self, ledger: Ledger, driver: PolicyDriver, lifecycle: Lifecycle) -> None:
        self._ledger = ledger
        self._driver = driver
        self._lifecycle = lifecycle

    @property
    def roster(self) -> Roster:
        """Members, and the tallies of all that ever joined. Read only."""
        return self._ledger.roster

    @property
    def tickets(self) -> TicketTable:
        """Open, pending and recently settled tickets. Read only."""
        return self._ledger.tickets

    @property
    def policy(self) -> Policy:
        """The policy that decides at present."""
        return self._driver.policy

    @property
    def began_with(self) -> Mapping[str, object]:
        """Name and knobs of the policy with which the job began; empty if that still decides."""
        return self._driver.changes.began_with

    @property
    def extents(self) -> Mapping[str, Extent]:
        """How much data each worker has, of those that say so."""
        return self._ledger.extents

    @property
    def change(self) -> str:
        """Known changes of the policy, as a sentence; empty if none waits, overlaps or is planned."""
        return self._driver.describe_change()

    @property
    def version(self) -> int:
        """Number of updates so far."""
        return self._ledger.version

    @property
    def entries(self) -> int:
        """Entries of the decision log so far."""
        return self._ledger.entries

    @property
    def loss(self) -> float | None:
        """Smoothed loss of recent commits; None before the first."""
        return self._ledger.loss

    @property
    def settable_rate(self) -> float | None:
        """The present learning rate if a commit may change it; else None."""
        ledger = self._ledger
        return present_rate(ledger.terms.optimizer, ledger.lr_scale, self._driver.aggregator)

    @property
    def rate_was_set(self) -> bool:
        """Whether the learning rate differs from the initial one."""
        return self._ledger.lr_scale != 1.0

    @property
    def folded(self) -> tuple[int, ...]:
        """Tickets in the shards' open sum, in order."""
        return tuple(self._driver.folded)

    @property
    def initialised(self) -> bool:
        """Version 0 exists."""
        return self._ledger.initialised

    @property
    def rejoin_limit(self) -> float:
        """Seconds that a lost worker with data left has to come back at the end of the job."""
        return self._ledger.rejoin_limit

    @property
    def started(self) -> bool:
        """Whether the policy is deciding."""
        return self._ledger.started

    @property
    def resting(self) -> bool:
        """Whether a phase is over and the job waits for its members to begin another one, or to leave."""
        return self._ledger.resting

    @property
    def phase(self) -> int:
        """The number of finished phases."""
        return self._ledger.phase

    @property
    def undeclared(self) -> bool:
        """Whether a phase is over and the next one's work units are not declared yet."""
        return self._ledger.undeclared

    @property
    def missing(self) -> int:
        """The number of workers that the start still waits for."""
        return self._lifecycle.missing

    @property
    def trying(self) -> bool:
        """Whether a trial of an update is under way. No worker can join meanwhile."""
        return self._driver.trial is not None

    @property
    def due(self) -> float | None:
        """When the next timer fires, in seconds of `now`; None if none is set or job time stands still."""
        due = self._driver.timers.due
        if due is None or self._ledger.stopped is not None:
            return None
        return self._ledger.began + due / 1e6

    def remaining(self, tag: str, now: float) -> float | None:
        """Return the seconds until a timer fires, 0 if it is due; None if it is not set."""
        timers, present = self._driver.timers, microseconds(self._driver.time(now))
        at = timers.pending.get(tag)
        if at is None:
            return None
        return max(0, at - (present if timers.paused_since is None else timers.paused_since)) / 1e6

    @property
    def stopped(self) -> Stopped | None:
        """How the job ended; None while it runs."""
        return self._ledger.stopped

    @property
    def over(self) -> bool:
        """Whether the job has stopped and every worker has left."""
        return self._ledger.stopped is not None and not self._ledger.roster.present

    @property
    def work(self) -> WorkQueue | None:
        """The work units that the job deals; None if it deals none. Read only."""
        return self._ledger.work

    @property
    def evaluator(self) -> str | None:
        """The worker that evaluates the last version; None before the stop, or if no worker does."""
        return self._ledger.evaluator

    def waits(self, now: float) -> list[Wait]:
        """Return what the job waits for live members to do, and for how long at most."""
        return list(waits(self._ledger, self._driver, now))
