"""Calls of a server: their deadlines, and how many of them one member may hold, or peers that have proven nothing."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from psserver.service.errors import exhausted
from psserver.service.guard.authorization import ANYBODY, Peer
from psserver.service.guard.limits import FIRST_MESSAGE, MEMBER_CALLS, UNPROVEN
from psserver.service.net.loop import loop_time
from pswire.patience import silence
from pswire.transport import frames

# Bytes of the first piece. Two pieces may be under way; on the slowest link the answer to a ping still arrives in
# time.
FIRST_PIECE: Final = 32 * 1024
# Seconds between two checks of all deadlines.
LOOK_EVERY: Final = 0.2


@dataclass(slots=True)
class SendingPace:
    """Size of the pieces of a call's payloads: it grows while the link takes each piece at once, and shrinks when
    it does not.

    A ping waits behind everything that was handed to its connection before. On a slow link, pieces must be small,
    or the answer to a ping comes too late and a receiving worker looks dead; on a fast link, large pieces cost
    least.
    """

    worker_timeout: float
    piece: int = FIRST_PIECE

    def begin(self) -> None:
        """Begin another payload. Every link takes its first piece at once, and the next is twice as large."""
        self.piece = max(FIRST_PIECE, self.piece // 2)

    def sent(self, seconds: float) -> None:
        """Adapt the size; `seconds` passed between a piece and the request for the next one."""
        # Two pieces and the ping fit into half of the time limit of its answer.
        limit = silence(self.worker_timeout) / 4
        if seconds > limit:
            self.piece = max(FIRST_PIECE, self.piece // 2)
        elif seconds < limit / 2:
            self.piece = min(frames.CHUNK_BYTES, self.piece * 2)


class CallPeer:
    """The peer of one call, and the deadline by which it must have acted. `deadline`: None while nothing is
    expected of it.

    `pace`: of what it is sent, once it is sent a version; None if not `paced`. `worker`: the member that it has proven
    to be. `writing`: a large answer that the peer has not read. The loop's thread owns it.
    """

    __slots__ = ("_cut", "address", "cut_off", "deadline", "pace", "paced", "peer", "worker", "writing")

    def __init__(
        self, cut: Callable[[], object], paced: bool = True, peer: Peer = ANYBODY, address: str = ""
    ) -> None:
        """`cut` ends the call soon, whatever it waits for. `paced`: pings share its connection. `peer`: the
        authenticated peer, if any. `address`: of the peer's machine, if known."""
        self.address = address
        self.paced = paced
        self.peer = peer
        self._cut = cut
        self.deadline: float | None = None
        self.cut_off = False
        self.pace: SendingPace | None = None
        self.worker = ""
        self.writing: asyncio.Future[None] | None = None

    def cancel(self) -> None:
        """End the call."""
        self.cut_off = True
        self._cut()

    def release(self) -> None:
        """Forget how to cut the call, which is over, so that nothing of it is kept."""
        self._cut = lambda: None

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Give the peer that many seconds for what is awaited inside the block."""
        self.deadline = loop_time() + seconds
        try:
            yield
        finally:
            self.deadline = None


class Watch:
    """The calls of a server. Close it at the end. The loop's thread owns it."""

    def __init__(self, most_unproven: int = UNPROVEN, most_of_member: int = MEMBER_CALLS) -> None:
        """`most_unproven`: of `strangers`, at most. `most_of_member`: payload calls of one member."""
        self._calls: set[CallPeer] = set()
        # Calls and connections that have proven nothing, the oldest first.
        self.strangers: dict[CallPeer, None] = {}
        self.most_unproven = most_unproven
        self._most = most_of_member
        # Payload calls by member, the oldest first, until the transport holds nothing of them.
        self._members: dict[str, list[CallPeer]] = {}
        self._next: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._next = loop.call_later(LOOK_EVERY, self._look, loop)

    def close(self) -> None:
        if self._next is not None:
            self._next.cancel()

    @contextmanager
    def unproven(self, caller: CallPeer) -> Iterator[None]:
        """Count the call inside the block among those that have proven nothing. Beyond the limit the oldest is cut;
        other calls are not affected."""
        self.strangers[caller] = None
        if len(self.strangers) > self.most_unproven:
            oldest = next(iter(self.strangers))
            del self.strangers[oldest]
            oldest.cancel()
        try:
            yield
        finally:
            self.proven(caller)

    def proven(self, caller: CallPeer) -> None:
        """Count the caller no longer among those that have proven nothing."""
        self.strangers.pop(caller, None)

    @contextmanager
    def first_message(self, caller: CallPeer) -> Iterator[None]:
        """Await the call's first message inside the block, within a time limit."""
        with self.unproven(caller), caller.within(FIRST_MESSAGE):
            yield

    @contextmanager
    def watching(self, caller: CallPeer) -> Iterator[CallPeer]:
        """Enforce the caller's deadlines inside the block, which is the whole call."""
        self._calls.add(caller)
        try:
            yield caller
        finally:
            self._calls.discard(caller)
            caller.release()
            if caller.writing is None or caller.writing.done():
                self._forget(caller)
            else:
                # gRPC holds the answer until the peer reads or goes.
                caller.writing.add_done_callback(lambda done: self._unread_gone(caller, done))

    def _unread_gone(self, caller: CallPeer, done: "asyncio.Future[None]") -> None:
        self._forget(caller)
        if not done.cancelled():
            # Retrieved so that asyncio does not log it: the wait was for the peer to go.
            done.exception()

    def claim(self, worker: str, caller: CallPeer) -> None:
        """Count the call as that of a member. Beyond its limit the oldest are cut: a restarted worker leaves broken
        calls behind.

        Raises Refused if that many are cut already but hold answers that the member does not read.
        """
        self.proven(caller)
        if caller.worker == worker:
            return
        self._forget(caller)
        mine = self._members.get(worker, [])
        unread = sum(call.cut_off and call.writing is not None for call in mine)
        if unread >= self._most:
            raise exhausted(
                f"{worker!r} has {unread} calls with answers that it does not read: expected it to read or end them",
            )
        caller.worker = worker
        self._members.setdefault(worker, []).append(caller)
        going = [call for call in self._members[worker] if not call.cut_off]
        for oldest in going[: max(0, len(going) + unread - self._most)]:
            oldest.cancel()

    def _forget(self, caller: CallPeer) -> None:
        if caller.worker:
            mine = self._members[caller.worker]
            mine.remove(caller)
            if not mine:
                del self._members[caller.worker]
            caller.worker = ""

    def transferring(self) -> set[str]:
        """Return the members of which a piece of a payload is on its way, in either direction."""
        return {call.worker for call in self._calls if call.worker and call.deadline is not None}

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop_time()
        late = [c for c in self._calls if c.deadline is not None and c.deadline < now]
        for caller in late:
            # Once is enough.
            caller.deadline = None
            caller.cancel()
        self._next = loop.call_later(LOOK_EVERY, self._look, loop)
