"""Notices to workers: an outbox for each session stream, and inline replies to an Exchange that awaits its answer."""

import hmac
import queue
import threading
from collections.abc import Callable, Container
from dataclasses import dataclass, field

import grpc

from psserver.coordinator.outputs import GrantNotice, Notice, RefusalNotice, StopNotice
from psserver.service.errors import Refused, precondition

# Notices that a worker has not read yet; a peer with more is not reading.
OUTBOX_LIMIT = 4096


@dataclass(slots=True)
class Outbox:
    """Notices for one session stream. None ends the stream.

    The job's lock owns it, but for the queue: the stream's own thread takes
    from that, and the thread that reads the stream adds refusals.
    """

    session: str
    # Breaks the stream off.
    cut: Callable[[], object]
    notices: queue.SimpleQueue[Notice | None] = field(default_factory=queue.SimpleQueue)
    # While an Exchange waits for the answer to its commit, notices go there, to be sent in one message with the next
    # weights.
    inline: "InlineReply | None" = None
    full: bool = False
    # The stream is over.
    over: threading.Event = field(default_factory=threading.Event)

    def put(self, notice: Notice) -> None:
        """For the stream itself. A peer that does not read is cut off, lest its notices fill the memory."""
        if self.notices.qsize() < OUTBOX_LIMIT:
            self.notices.put(notice)
        elif not self.full:
            self.full = True
            self.cut()

    def end(self) -> None:
        """The stream is over: nothing more is sent on it, nor by an exchange on its behalf."""
        self.over.set()
        self.notices.put(None)
        if self.inline is not None:
            self.inline.end()


class Outboxes:
    """The outboxes of all open session streams, by worker and incarnation. The job's lock owns it."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, int], Outbox] = {}

    def all(self) -> list[Outbox]:
        return list(self._open.values())

    def open(self, worker: str, incarnation: int, outbox: Outbox) -> None:
        """A stream stands. It ends and replaces an older one of the same worker."""
        before = self._open.pop((worker, incarnation), None)
        if before is not None:
            before.end()
        self._open[worker, incarnation] = outbox

    def close(self, worker: str, incarnation: int, outbox: Outbox) -> bool:
        """The stream of `outbox` is over. False if a newer one has replaced it."""
        if self._open.get((worker, incarnation)) is not outbox:
            return False
        del self._open[worker, incarnation]
        return True

    def end_others(self, members: Container[tuple[str, int]]) -> None:
        """End the streams of those that are no members any more: given up while their connection stands, they may
        join again."""
        for who, outbox in list(self._open.items()):
            if who not in members:
                del self._open[who]
                outbox.end()

    def post(self, worker: str, incarnation: int, notice: Notice) -> None:
        """A no-op for a worker without a stream: the coordinator repeats it when it is back."""
        outbox = self._open.get((worker, incarnation))
        if outbox is not None:
            (outbox.inline or outbox).put(notice)

    def post_all(self, notice: Notice) -> None:
        for outbox in self._open.values():
            (outbox.inline or outbox).put(notice)

    def begin_inline(self, worker: str, incarnation: int, session: str) -> "tuple[Outbox, InlineReply]":
        """Collect this worker's notices from now on, until `end_inline`.

        Raises Refused: UNAVAILABLE while the session is not open, FAILED_PRECONDITION for another worker's.
        """
        outbox = self._open.get((worker, incarnation))
        if outbox is None:
            # It may be on its way back; the commit is taken by the session then.
            message = f"worker {worker!r}, incarnation {incarnation}, has no open session now"
            raise Refused(grpc.StatusCode.UNAVAILABLE, message)
        if not hmac.compare_digest(outbox.session.encode(), session.encode()):
            raise precondition(f"worker {worker!r} is another session's; join first")
        outbox.inline = InlineReply()
        return outbox, outbox.inline

    @staticmethod
    def end_inline(outbox: Outbox, reply: "InlineReply") -> None:
        """What is not delivered goes to the session after all."""
        if outbox.inline is reply:
            outbox.inline = None
        for notice in reply.undelivered():
            outbox.put(notice)


class InlineReply:
    """Collects a worker's notices for the Exchange that waits for them. Its own lock (`_changed`) owns it."""

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
        """What has come; with `wait_for_grant`, not before a grant, a stop or a refusal is among it.

        Raises Refused when the session ends or the worker has gone meanwhile.
        """
        decisive = (GrantNotice, StopNotice, RefusalNotice)
        with self._changed:
            while wait_for_grant and not any(isinstance(n, decisive) for n in self._notices):
                if self._ended:
                    raise Refused(
                        grpc.StatusCode.UNAVAILABLE, "the worker's session broke; the answer is sent there"
                    )
                self._changed.wait(1.0)
                if not alive():
                    raise Refused(grpc.StatusCode.CANCELLED, "the worker has gone")
            self._taken = len(self._notices)
            return list(self._notices)

    def end(self) -> None:
        """What is decided from now on is sent elsewhere."""
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
