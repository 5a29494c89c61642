"""What a training loop does with its time, ticket by ticket: the `times` of its commits."""

import time
from collections.abc import Callable

from psworker.engine import Grant, Times

Clock = Callable[[], float]


class Stopwatch:
    """Is called as one training loop proceeds, by that loop's thread. `clock` gives monotonic seconds.

    A ticket begins when its grant is received, or, if that came ahead, when the
    ticket before it is out of hand, and is computed on until its push begins,
    but for the time in which the loop waits for the version. What is fetched
    beside a computation thus costs nothing.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        # When the last ticket was committed or given up; None before the first.
        self._ended: float | None = None
        self._asked = 0.0
        # The ticket in hand, 0 for none.
        self._ticket = 0
        self._begun = 0.0
        self._pull = 0.0
        self._before = 0.0
        self._computed: float | None = None

    def ask(self) -> None:
        """The loop wants a ticket, and has nothing else to do before it comes."""
        self._asked = self._clock()

    def begin(self, grant: Grant) -> None:
        """It has one."""
        ended = grant.received_at if self._ended is None else self._ended
        if self._ticket:
            # It was cancelled; the loop need not abandon it before asking again.
            ended = self._asked
        self._ticket, self._pull, self._computed = grant.ticket, 0.0, None
        self._begun = max(grant.received_at, ended)
        self._before = max(0.0, min(self._asked, grant.received_at) - ended)

    def now(self) -> float:
        """When the loop begins to wait for the version of the ticket in hand; see `waited`."""
        return self._clock()

    def waited(self, since: float) -> None:
        """The loop has waited for the version since then."""
        self._pull += self._clock() - since

    def pulled(self, seconds: float) -> None:
        """It waited this long since the grant was received."""
        self._pull += seconds

    def push(self, ticket: int) -> None:
        """The payload of the ticket in hand is ready; a push that is repeated is the same one. The ticket of the
        initial values never was in hand."""
        if ticket == self._ticket and self._computed is None:
            self._computed = self._clock()

    def times(self, ticket: int) -> Times | None:
        """Seconds of pull, compute and before, see `Times` in the protocol; None before the ticket's push."""
        if ticket != self._ticket or self._computed is None:
            return None
        return Times(self._pull, max(0.0, self._computed - self._begun - self._pull), self._before)

    def end(self, at: float | None = None) -> None:
        """The ticket is out of hand, now, or since `at`, when the answer to its commit came."""
        self._ended = self._clock() if at is None else at
        self._ticket = 0
