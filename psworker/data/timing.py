"""Times of a training loop by ticket, for the `times` of its commits."""

from collections.abc import Callable

from pswire import running
from psworker.engine import Grant, Times

Clock = Callable[[], float]


class Stopwatch:
    """Measures one training loop. That loop's thread calls it; `clock` returns monotonic seconds: those of
    the system, because a computation that keeps the interpreter counts whole.

    A ticket begins when its grant is received or, if the grant came ahead, when the previous ticket ends. Until its
    push begins the loop computes, except while it waits for the version. Fetching beside a computation is thus free.
    """

    def __init__(self, clock: Clock = running.system) -> None:
        self._clock = clock
        # When the last ticket was committed or abandoned; None before the first.
        self._ended: float | None = None
        self._asked = 0.0
        # The ticket in hand; 0 for none.
        self._ticket = 0
        self._begun = 0.0
        self._pull = 0.0
        self._before = 0.0
        self._computed: float | None = None

    def ask(self) -> None:
        """Note that the loop asks for a ticket, and does nothing until it is granted."""
        self._asked = self._clock()

    def begin(self, grant: Grant) -> None:
        """Note that the loop has the grant."""
        ended = grant.received_at if self._ended is None else self._ended
        if self._ticket:
            # The previous ticket was cancelled; the loop need not abandon it before it asks again.
            ended = self._asked
        self._ticket, self._pull, self._computed = grant.ticket, 0.0, None
        self._begun = max(grant.received_at, ended)
        self._before = max(0.0, min(self._asked, grant.received_at) - ended)

    def now(self) -> float:
        """Return the time at which the loop begins to wait for a version, for `waited`."""
        return self._clock()

    def waited(self, since: float) -> None:
        """Note that the loop has waited for the version since that time."""
        self._pull += self._clock() - since

    def pulled(self, seconds: float) -> None:
        """Note that the version came along with the grant, and was here that much later."""
        self._pull += seconds

    def push(self, ticket: int) -> None:
        """Note that the payload of the ticket is ready. A repeated push does not count again.

        A ticket for initial values was never in hand, and is ignored.
        """
        if ticket == self._ticket and self._computed is None:
            self._computed = self._clock()

    def times(self, ticket: int) -> Times | None:
        """Return the ticket's seconds of pull, compute and before (see `Times`); None before its push."""
        if ticket != self._ticket or self._computed is None:
            return None
        return Times(self._pull, max(0.0, self._computed - self._begun - self._pull), self._before)

    def end(self, at: float | None = None) -> None:
        """Note that the ticket is finished: now, or `at`, when the answer to its commit came."""
        self._ended = self._clock() if at is None else at
        self._ticket = 0
