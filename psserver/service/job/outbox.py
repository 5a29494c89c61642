"""Notices to workers: an outbox per session stream, and inline replies to an Exchange that awaits its answer."""

import hmac
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable, Container

from psserver.service.errors import precondition, unavailable
from psserver.service.guard.limits import OUTBOX
from psserver.service.net.loop import settle, until
from pswire import protocol

# Notices that end an exchange's wait.
DECISIVE = (protocol.Grant, protocol.Stop, protocol.Refusal)
# Most notices of one message.
MOST_AT_ONCE = 256


class Outbox:
    """Notices for one session stream. The loop's thread owns it; one task takes from it. `cut` ends the stream."""

    __slots__ = ("_notices", "_over", "_waker", "cut", "full", "inline", "loop", "session")

    def __init__(self, loop: AbstractEventLoop, session: str, cut: Callable[[], object]) -> None:
        self.session, self.cut = session, cut
        self.loop = loop
        self._notices: list[protocol.Event] = []
        self._waker: Future[None] | None = None
        # While an Exchange waits for the answer to its commit, notices go there, to be sent with the next weights.
        self.inline: InlineReply | None = None
        self.full = False
        # Done when the stream is over.
        self._over: Future[None] = loop.create_future()

    def put(self, notice: protocol.Event) -> None:
        """Queue a notice for the stream. A peer that does not read is cut, so that its notices do not fill the
        memory."""
        if len(self._notices) < OUTBOX:
            self._notices.append(notice)
            self._wake()
        elif not self.full:
            self.full = True
            self.cut()

    async def take(self) -> list[protocol.Event]:
        """Return the queued notices as soon as there are any; an empty list at the end."""
        while not self._notices and not self._over.done():
            self._waker = self.loop.create_future()
            await self._waker
        taken = self._notices[:MOST_AT_ONCE]
        del self._notices[:MOST_AT_ONCE]
        return taken

    async def ended(self, seconds: float) -> None:
        """Wait that many seconds, or until the stream is over."""
        if seconds > 0 and not self._over.done():
            pause = self.loop.create_future()
            self._over.add_done_callback(lambda _: settle(pause))
            await until(pause, seconds)

    def end(self) -> None:
        """End the stream, and any exchange that would send on its behalf."""
        settle(self._over)
        self._wake()
        if self.inline is not None:
            self.inline.end()

    def _wake(self) -> None:
        if self._waker is not None:
            settle(self._waker)


class Outboxes:
    """Outboxes of all open session streams, by worker and incarnation. The loop's thread owns it."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, int], Outbox] = {}

    def __contains__(self, who: tuple[str, int]) -> bool:
        return who in self._open

    def of(self, worker: str, incarnation: int) -> Outbox | None:
        """Return the outbox of that worker's stream, if one is open."""
        return self._open.get((worker, incarnation))

    def all(self) -> list[Outbox]:
        return list(self._open.values())

    def open(self, worker: str, incarnation: int, outbox: Outbox) -> None:
        """Add the outbox of a new stream; end an older one of the same worker."""
        before = self._open.pop((worker, incarnation), None)
        if before is not None:
            before.end()
        self._open[worker, incarnation] = outbox

    def close(self, worker: str, incarnation: int, outbox: Outbox) -> bool:
        """Remove the outbox of an ended stream. Returns False if a newer one has replaced it."""
        if self._open.get((worker, incarnation)) is not outbox:
            return False
        del self._open[worker, incarnation]
        return True

    def end_others(self, members: Container[tuple[str, int]]) -> None:
        """End the streams of workers that are no members any more. Their connection may still stand; they may join
        again."""
        for who, outbox in list(self._open.items()):
            if who not in members:
                del self._open[who]
                outbox.end()

    def post(self, worker: str, incarnation: int, notice: protocol.Event) -> None:
        """Queue a notice. Does nothing for a worker without a stream: the coordinator repeats the notice when it is
        back."""
        outbox = self._open.get((worker, incarnation))
        if outbox is not None:
            (outbox.inline or outbox).put(notice)

    def post_all(self, notice: protocol.Event) -> None:
        for outbox in self._open.values():
            (outbox.inline or outbox).put(notice)

    def begin_inline(self, worker: str, incarnation: int, session: str) -> "tuple[Outbox, InlineReply]":
        """Collect this worker's notices for an exchange until `end_inline`.

        Raises Refused: UNAVAILABLE while the session is not open, FAILED_PRECONDITION for another worker's session.
        """
        outbox = self._open.get((worker, incarnation))
        if outbox is None:
            # It may be reconnecting, or joining again.
            message = f"worker {worker!r}, incarnation {incarnation}, has no open session now: wait"
            raise unavailable(message)
        if not hmac.compare_digest(outbox.session.encode(), session.encode()):
            raise precondition(f"worker {worker!r} is another session's; join first")
        before, outbox.inline = outbox.inline, InlineReply(outbox.loop)
        if before is not None:
            # The worker sends its commit again.
            for notice in before.take_undelivered():
                outbox.inline.put(notice)
            before.end()
        return outbox, outbox.inline

    @staticmethod
    def end_inline(outbox: Outbox, reply: "InlineReply") -> None:
        """End the collection; undelivered notices go to the session."""
        if outbox.inline is reply:
            outbox.inline = None
        for notice in reply.take_undelivered():
            outbox.put(notice)


class InlineReply:
    """A worker's notices for the Exchange that waits for them. The loop's thread owns it."""

    __slots__ = ("_decisive", "_ended", "_loop", "_notices", "_taken", "_waker")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._notices: list[protocol.Event] = []
        self._taken = 0
        # Whether a decisive notice has come.
        self._decisive = False
        self._waker: Future[None] | None = None
        self._ended = False

    def put(self, notice: protocol.Event) -> None:
        self._notices.append(notice)
        if isinstance(notice, DECISIVE):
            self._decisive = True
            if self._waker is not None:
                settle(self._waker)

    async def take(self, seconds: float) -> list[protocol.Event]:
        """Return the notices. First wait for a grant, a stop or a refusal: at most `seconds`, and not beyond the end of
        the session."""
        if seconds and not self._decisive and not self._ended:
            self._waker = self._loop.create_future()
            await until(self._waker, seconds)
        self._taken = len(self._notices)
        return list(self._notices)

    def end(self) -> None:
        """End the wait: further notices are sent elsewhere."""
        self._ended = True
        if self._waker is not None:
            settle(self._waker)

    def delivered(self) -> None:
        """Drop the notices that `take` returned: they have been sent."""
        del self._notices[: self._taken]
        self._taken = 0

    def forget(self) -> None:
        """Drop all notices but the end of the job: what was decided is not in the log, so nobody may hear of it."""
        self._notices = [notice for notice in self._notices if isinstance(notice, protocol.Stop)]
        self._taken = 0

    def take_undelivered(self) -> list[protocol.Event]:
        """Return the notices that were not sent, once."""
        found, self._notices = self._notices, []
        return found
