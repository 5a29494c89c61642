"""Notices to workers: an outbox for each session stream, and inline replies to an Exchange that awaits its answer."""

import hmac
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable, Container

import grpc

from psserver.service.errors import Refused, precondition
from psserver.service.net.loop import settle, until
from pswire import protocol

# Notices that a worker has not read yet; a peer with more is not reading.
OUTBOX_LIMIT = 4096


# What an exchange waits for.
DECISIVE = (protocol.Grant, protocol.Stop, protocol.Refusal)
# Of one message.
MOST_AT_ONCE = 256


class Outbox:
    """Notices for one session stream. The loop's thread owns it; one task takes from it.

    `cut` breaks the stream off.
    """

    __slots__ = ("_notices", "_over", "_waker", "cut", "full", "inline", "loop", "session")

    def __init__(self, loop: AbstractEventLoop, session: str, cut: Callable[[], object]) -> None:
        self.session, self.cut = session, cut
        self.loop = loop
        self._notices: list[protocol.Event] = []
        self._waker: Future[None] | None = None
        # While an Exchange waits for the answer to its commit, notices go there, to be sent in one message with the
        # next weights.
        self.inline: InlineReply | None = None
        self.full = False
        # Set when the stream is over.
        self._over: Future[None] = loop.create_future()

    def put(self, notice: protocol.Event) -> None:
        """For the stream itself. A peer that does not read is cut off, lest its notices fill the memory."""
        if len(self._notices) < OUTBOX_LIMIT:
            self._notices.append(notice)
            self._wake()
        elif not self.full:
            self.full = True
            self.cut()

    @property
    def unread(self) -> int:
        """Notices that have not been sent."""
        return len(self._notices)

    async def take(self) -> list[protocol.Event]:
        """What is there at once, as soon as something is; nothing at the end."""
        while not self._notices and not self._over.done():
            self._waker = self.loop.create_future()
            await self._waker
        taken = self._notices[:MOST_AT_ONCE]
        del self._notices[:MOST_AT_ONCE]
        return taken

    async def ended(self, seconds: float) -> None:
        """Wait so many seconds, or until the stream is over."""
        if seconds > 0 and not self._over.done():
            pause = self.loop.create_future()
            self._over.add_done_callback(lambda _: settle(pause))
            await until(pause, seconds)

    def end(self) -> None:
        """The stream is over: nothing more is sent on it, nor by an exchange on its behalf."""
        settle(self._over)
        self._wake()
        if self.inline is not None:
            self.inline.end()

    def _wake(self) -> None:
        if self._waker is not None:
            settle(self._waker)


class Outboxes:
    """The outboxes of all open session streams, by worker and incarnation. The loop's thread owns it."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, int], Outbox] = {}

    def all(self) -> list[Outbox]:
        return list(self._open.values())

    def unread(self) -> list[tuple[str, int]]:
        """Of each worker that has any: notices that were not sent."""
        return [(worker, box.unread) for (worker, _), box in self._open.items() if box.unread]

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

    def post(self, worker: str, incarnation: int, notice: protocol.Event) -> None:
        """A no-op for a worker without a stream: the coordinator repeats it when it is back."""
        outbox = self._open.get((worker, incarnation))
        if outbox is not None:
            (outbox.inline or outbox).put(notice)

    def post_all(self, notice: protocol.Event) -> None:
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
        outbox.inline = InlineReply(outbox.loop)
        return outbox, outbox.inline

    @staticmethod
    def end_inline(outbox: Outbox, reply: "InlineReply") -> None:
        """What is not delivered goes to the session after all."""
        if outbox.inline is reply:
            outbox.inline = None
        for notice in reply.undelivered():
            outbox.put(notice)


class InlineReply:
    """Collects a worker's notices for the Exchange that waits for them. The loop's thread owns it."""

    __slots__ = ("_decisive", "_ended", "_loop", "_notices", "_taken", "_waker")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._notices: list[protocol.Event] = []
        self._taken = 0
        # A notice that an exchange waits for has come.
        self._decisive = False
        self._waker: Future[None] | None = None
        self._ended = False

    def put(self, notice: protocol.Event) -> None:
        self._notices.append(notice)
        if isinstance(notice, DECISIVE):
            self._decisive = True
            if self._waker is not None:
                settle(self._waker)

    async def take(self, *, wait_for_grant: bool) -> list[protocol.Event]:
        """What has come; with `wait_for_grant`, not before a grant, a stop or a refusal is among it.

        Raises Refused when the session ends meanwhile.
        """
        while wait_for_grant and not self._decisive:
            if self._ended:
                raise Refused(
                    grpc.StatusCode.UNAVAILABLE, "the worker's session broke; the answer is sent there"
                )
            self._waker = self._loop.create_future()
            await self._waker
        self._taken = len(self._notices)
        return list(self._notices)

    def end(self) -> None:
        """What is decided from now on is sent elsewhere."""
        self._ended = True
        if self._waker is not None:
            settle(self._waker)

    def delivered(self) -> None:
        """What `take` returned has been sent. What came since has not."""
        del self._notices[: self._taken]
        self._taken = 0

    def forget(self) -> None:
        """What was decided is not in the log, and nobody hears of it: but for the end of the job."""
        self._notices = [notice for notice in self._notices if isinstance(notice, protocol.Stop)]
        self._taken = 0

    def undelivered(self) -> list[protocol.Event]:
        return self._notices
