"""What workers are told: an outbox per session stream, and the diversion of an Exchange that waits for its answer."""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc

from psserver.coordinator.outputs import GrantNotice, Notice, RefusalNotice, StopNotice
from psserver.service.rpc.registration import Refused

# Notices that a worker has not read yet; a peer with more is not reading.
OUTBOX_LIMIT = 4096


@dataclass(slots=True)
class Outbox:
    """Notices for one session stream. None ends the stream.

    `diversion`: while an Exchange waits for the answer to its commit, notices
    go there, to be sent in one message with the next weights.
    """

    session: str
    # Breaks the stream off.
    cut: Callable[[], object]
    notices: queue.SimpleQueue[Notice | None] = field(default_factory=queue.SimpleQueue)
    diversion: "InlineReply | None" = None
    full: bool = False

    def put(self, notice: Notice) -> None:
        """For the stream itself. A peer that does not read is cut off, lest its notices fill the memory."""
        if self.notices.qsize() < OUTBOX_LIMIT:
            self.notices.put(notice)
        elif not self.full:
            self.full = True
            self.cut()

    def end(self) -> None:
        """The stream is over: nothing more comes by it, nor by an exchange on its behalf."""
        self.notices.put(None)
        if self.diversion is not None:
            self.diversion.end()


class InlineReply:
    """Collects a worker's notices for the Exchange that waits for them."""

    def __init__(self) -> None:
        self._notices: list[Notice] = []
        self._taken = 0
        self._changed = threading.Condition()
        self._ended = False

    def put(self, notice: Notice) -> None:
        with self._changed:
            self._notices.append(notice)
            self._changed.notify_all()

    def take(self, *, wait_for_grant: bool, alive: Callable[[], bool]) -> list[Notice]:
        """What has come; with `wait_for_grant`, not before a grant, a stop or a refusal is among it."""
        decisive = (GrantNotice, StopNotice, RefusalNotice)
        with self._changed:
            while wait_for_grant and not any(isinstance(n, decisive) for n in self._notices):
                if self._ended:
                    raise Refused(
                        grpc.StatusCode.UNAVAILABLE, "the worker's session broke; it hears more there"
                    )
                self._changed.wait(1.0)
                if not alive():
                    raise Refused(grpc.StatusCode.CANCELLED, "the worker has gone")
            self._taken = len(self._notices)
            return list(self._notices)

    def end(self) -> None:
        """What is decided from now on is told elsewhere."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def delivered(self) -> None:
        """What `take` returned has been sent. What came since has not."""
        with self._changed:
            del self._notices[: self._taken]
            self._taken = 0

    def undelivered(self) -> list[Notice]:
        with self._changed:
            return list(self._notices)
