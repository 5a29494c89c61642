"""The next version on its way while the present one is computed on."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from psworker.data.shared_memory import Received
from psworker.engine import Grant
from psworker.errors import SessionError


@dataclass(frozen=True, slots=True)
class Fetched:
    """What came for `ticket`, by server; or why it did not come."""

    ticket: int
    received: list[Received] | None
    error: SessionError | None = None


class Prefetch:
    """One thread that waits for the next grant and pulls its version.

    `wait_next_grant(ticket)` gives the grant after that of `ticket`, or None at the
    end; `pull(grant, narrow)` its version, None where that has come in another
    way. Both run in that thread. Its methods are for the training loop's
    thread, to which all attributes belong; the two share the queue and the
    futures that go through it.
    """

    def __init__(
        self,
        wait_next_grant: Callable[[int], Grant | None],
        pull: Callable[[Grant, bool], list[Received] | None],
    ) -> None:
        self._wait_next_grant = wait_next_grant
        self._pull = pull
        self._wanted: queue.SimpleQueue[tuple[int, bool, Future[Fetched | None]] | None] = queue.SimpleQueue()
        # A daemon, unlike an executor's: a program that forgets to close its session ends all the same.
        threading.Thread(target=self._work, name="prefetch", daemon=True).start()
        self._under_way: Future[Fetched | None] | None = None
        # The ticket that is computed on meanwhile.
        self._during = 0

    def begin(self, ticket: int, *, narrow: bool) -> None:
        """`ticket` is being computed: go for the next one. A no-op while one is under way."""
        if self._under_way is None:
            self._during = ticket
            self._under_way = Future()
            self._wanted.put((ticket, narrow, self._under_way))

    @property
    def fetched(self) -> bool:
        """What was begun last is here, or has failed."""
        return self._under_way is not None and self._under_way.done()

    def take(self, ticket: int) -> list[Received] | None:
        """The version of `ticket`, which is granted; None if it was not fetched. Raises what its pull raised."""
        if self._under_way is None or ticket <= self._during:
            return None
        under_way, self._under_way = self._under_way, None
        found = under_way.result()
        if found is None or found.ticket != ticket:
            # Fetched for a ticket that was cancelled since.
            return None
        if found.error is not None:
            raise found.error
        return found.received

    def close(self) -> None:
        self._wanted.put(None)

    def _work(self) -> None:
        while (wanted := self._wanted.get()) is not None:
            ticket, narrow, found = wanted
            try:
                found.set_result(self._fetch(ticket, narrow))
            except BaseException as error:
                found.set_exception(error)

    def _fetch(self, ticket: int, narrow: bool) -> Fetched | None:
        grant = self._wait_next_grant(ticket)
        if grant is None:
            return None
        try:
            return Fetched(grant.ticket, self._pull(grant, narrow))
        except SessionError as error:
            return Fetched(grant.ticket, None, error)
