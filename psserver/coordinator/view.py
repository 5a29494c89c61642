"""What a coordinator is asked between two inputs; nothing changes by it."""

from psserver.coordinator.ledger import Ledger
from psserver.coordinator.lifecycle import Lifecycle
from psserver.coordinator.members.roster import Roster
from psserver.coordinator.members.waits import Wait, waits
from psserver.coordinator.policy_driver import PolicyDriver
from psserver.coordinator.terms import Stopped
from psserver.coordinator.tickets.contributions import present_rate
from psserver.coordinator.tickets.table import TicketTable
from psserver.coordinator.work.queue import WorkQueue


class CoordinatorView:
    """Reads what its parts know."""

    def __init__(self, ledger: Ledger, driver: PolicyDriver, lifecycle: Lifecycle) -> None:
        self._ledger = ledger
        self._driver = driver
        self._lifecycle = lifecycle

    @property
    def roster(self) -> Roster:
        """Members, and the tallies of all that ever were. To be read only."""
        return self._ledger.roster

    @property
    def tickets(self) -> TicketTable:
        """Open, pending and recently settled tickets. To be read only."""
        return self._ledger.tickets

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
        """The present learning rate, where a commit may set another; else None."""
        ledger = self._ledger
        return present_rate(ledger.terms.optimizer, ledger.lr_scale, self._driver.aggregator)

    @property
    def rate_was_set(self) -> bool:
        """The learning rate is not the one that the job began with."""
        return self._ledger.lr_scale != 1.0

    @property
    def folded(self) -> tuple[int, ...]:
        """Tickets that are in the shards' open sum, in order."""
        return tuple(self._driver.folded)

    @property
    def initialised(self) -> bool:
        """Version 0 exists."""
        return self._ledger.initialised

    @property
    def rejoin_limit(self) -> float:
        """Seconds that a worker which was lost before its data ended has to come back at the end."""
        return self._ledger.rejoin_limit

    @property
    def started(self) -> bool:
        """The policy decides."""
        return self._ledger.started

    @property
    def resting(self) -> bool:
        """A phase is over: the job waits for its members to begin another one, or to leave."""
        return self._ledger.resting

    @property
    def phase(self) -> int:
        """How many phases are over."""
        return self._ledger.phase

    @property
    def undeclared(self) -> bool:
        """A phase is over, and nobody has said yet which work units the next one deals, if any."""
        return self._ledger.undeclared

    @property
    def missing(self) -> int:
        """How many workers the start still waits for."""
        return self._lifecycle.missing

    @property
    def trying(self) -> bool:
        """The shards are asked whether an update is finite. Nobody can join meanwhile."""
        return self._driver.trial is not None

    @property
    def stopped(self) -> Stopped | None:
        """How the job ended; None while it goes on."""
        return self._ledger.stopped

    @property
    def over(self) -> bool:
        """The job has stopped and every worker has left."""
        return self._ledger.stopped is not None and not self._ledger.roster.present

    @property
    def work(self) -> WorkQueue | None:
        """The work units that the job deals; None where it deals none. To be read only."""
        return self._ledger.work

    @property
    def evaluator(self) -> str | None:
        """The worker that is asked to evaluate the last version; None before the stop, and where nobody is."""
        return self._ledger.evaluator

    def waits(self, now: float) -> list[Wait]:
        """What a member that lives is waited for, and for how long at most."""
        return list(waits(self._ledger, self._driver, now))
