"""A contribution that travels in a thread while the training loop takes the first steps of its next ticket."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from psworker.engine import Grant
from psworker.errors import Voided
from psworker.local import Result
from psworker.local.rule import Flats
from psworker.session import Session


@dataclass(frozen=True, slots=True)
class Arrived:
    """The next `grant`, and its version. None: the job is over; or the ticket is void, and a pull will say why."""

    grant: Grant | None
    weights: Flats | None


class Travelling:
    """Sends a contribution, asks for the next ticket and pulls its version, in a thread of its own.

    The session belongs to that thread until `wait` returns. `grant`, `result`: of the contribution. `named`: its
    batches, in words.
    """

    def __init__(
        self, session: Session, send: Callable[[], object], grant: Grant, result: Result, named: str
    ) -> None:
        """`send` contributes, and asks for the next ticket in the same message."""
        self.grant, self.result, self.named = grant, result, named
        self._session, self._send = session, send
        self._not_sent: BaseException | None = None
        self._not_arrived: BaseException | None = None
        self._arrived = Arrived(None, None)
        # A daemon: a program that forgets to close its session ends all the same.
        self._thread = threading.Thread(target=self._run, name="travelling", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until the version is here. Raises what sending the contribution raised."""
        self._thread.join()
        if self._not_sent is not None:
            raise self._not_sent

    def arrived(self) -> Arrived:
        """Return what came, after `wait`. Raises what asking for it raised."""
        if self._not_arrived is not None:
            raise self._not_arrived
        return self._arrived

    def _run(self) -> None:
        try:
            self._send()
        except BaseException as error:
            self._not_sent = error
            return
        try:
            grant = self._session.ready()
            self._arrived = Arrived(grant, None if grant is None else self._pulled(grant))
        except BaseException as error:
            self._not_arrived = error

    def _pulled(self, grant: Grant) -> Flats | None:
        try:
            return self._session.pull_flat(grant)
        except Voided:
            return None
