"""Calls of a server: their deadlines, and how many of them one member may hold, or peers that have proven nothing."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import grpc

from psserver.service.errors import Refused
from psserver.service.guard.authorization import ANYBODY, Peer
from psserver.service.guard.limits import FIRST_MESSAGE, MEMBER_CALLS, UNPROVEN, Unproven
from pswire import running
from pswire.patience import silence
from pswire.transport import frames

# Bytes of the first piece. Two pieces may be under way; on the slowest link the answer to a ping still arrives in
# time.
FIRST_PIECE: Final = 32 * 1024


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


# Seconds between two checks of all deadlines.
LOOK_EVERY = 0.2
# Bytes from which a message is counted.
LARGE_MESSAGE = 2**16


class Caller:
    """The peer of one call, and the deadline by which it must have acted. `deadline`: None while nothing is
    expected of it.

    `pace`: of what it is sent, once it is sent a version; None if not `paced`. The loop's thread owns it.
    """

    __slots__ = ("_cut", "address", "cut_off", "deadline", "pace", "paced", "peer")

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
        self.deadline = running.now() + seconds
        try:
            yield
        finally:
            self.deadline = None


class Watch:
    """Deadlines of all calls of a server. Close it at the end. The loop's thread owns it."""

    def __init__(self, most_unproven: int = int(UNPROVEN.value)) -> None:
        """`most_unproven`: calls that have proven nothing, at most."""
        self._calls: set[Caller] = set()
        # Bytes of each call's last message, either way, if it is large.
        self._messages: dict[Caller, int] = {}
        self.message_bytes = 0
        # The same for calls that were cut while that message was being sent.
        self._unread: dict[Caller, int] = {}
        # Calls that have proven nothing.
        self.strangers: Unproven[Caller] = Unproven(most_unproven)
        self._next: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._next = loop.call_later(LOOK_EVERY, self._look, loop)

    def close(self) -> None:
        if self._next is not None:
            self._next.cancel()

    @contextmanager
    def unproven(self, caller: Caller) -> Iterator[None]:
        """Count the call inside the block among those that have proven nothing. Beyond the limit the oldest is cut;
        other calls are not affected."""
        for oldest in self.strangers.admit(caller):
            oldest.cancel()
        try:
            yield
        finally:
            self.strangers.discard(caller)

    @contextmanager
    def watching(self, caller: Caller) -> Iterator[Caller]:
        """Enforce the caller's deadlines inside the block."""
        self._calls.add(caller)
        try:
            yield caller
        finally:
            self._calls.discard(caller)
            self.set_message(caller, 0)
            caller.release()

    def is_active(self, caller: Caller) -> bool:
        """Return whether the call is under way, or was cut and its peer has not read what was sent before."""
        return caller in self._calls or caller in self._unread

    def unread(self, caller: Caller) -> bool:
        """Return whether the call was cut while the transport holds a large message for it."""
        return caller in self._unread

    def leave_unread(self, caller: Caller, nbytes: int, writing: "asyncio.Future[None]") -> None:
        """Count `nbytes` of a cut call until `writing` is done: gRPC holds them until the peer reads or goes."""
        self._unread[caller] = nbytes
        self.message_bytes += nbytes

        def gone(done: "asyncio.Future[None]") -> None:
            self.message_bytes -= self._unread.pop(caller)
            if not done.cancelled():
                # Retrieved so that asyncio does not log it: the wait was for the peer to go.
                done.exception()

        writing.add_done_callback(gone)

    def set_message(self, caller: Caller, nbytes: int) -> None:
        """Record the size of the call's present message; small ones are not counted."""
        before = self._messages.pop(caller, 0)
        if nbytes >= LARGE_MESSAGE:
            self._messages[caller] = nbytes
            self.message_bytes += nbytes
        self.message_bytes -= before

    @contextmanager
    def first_message(self, caller: Caller) -> Iterator[None]:
        """Await the call's first message inside the block, within a time limit."""
        with self.unproven(caller), caller.within(FIRST_MESSAGE.value):
            yield

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = running.now()
        late = [c for c in self._calls if c.deadline is not None and c.deadline < now]
        for caller in late:
            self._calls.discard(caller)
            caller.cancel()
        self._next = loop.call_later(LOOK_EVERY, self._look, loop)


class MemberCalls:
    """Authenticated payload calls by member. `most`: of one member. The loop's thread owns it."""

    def __init__(self, watch: Watch, most: int = int(MEMBER_CALLS.value)) -> None:
        self._most, self._watch = most, watch
        self._of: dict[str, dict[Caller, None]] = {}
        self._whose: dict[Caller, str] = {}
        # Above this number of calls, finished ones are swept.
        self._enough = 64

    @property
    def transferring(self) -> set[str]:
        """Members of which a piece of a payload is on its way, in either direction."""
        return {
            worker
            for caller, worker in self._whose.items()
            if caller.deadline is not None and self._watch.is_active(caller)
        }

    def claim(self, worker: str, caller: Caller) -> None:
        """Assign the call to a member. Beyond its limit the oldest are cut: a restarted worker leaves broken calls
        behind.

        Raises Refused if the excess calls are cut already but hold answers that the member does not read.
        """
        if self._whose.get(caller) == worker:
            return
        self._forget(list(self._of.get(worker, ())))
        if len(self._whose) >= self._enough:
            self._forget(list(self._whose))
            self._enough = 64 + 2 * len(self._whose)
        self._forget([caller] if caller in self._whose else [], also_standing=True)
        mine, most = self._of.setdefault(worker, {}), self._most
        unread = sum(map(self._watch.unread, mine))
        if unread >= most:
            raise Refused(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{worker!r} has {unread} calls with answers that it does not read: expected it to read or end them",
            )
        self._whose[caller] = worker
        mine[caller] = None
        going = [call for call in mine if not self._watch.unread(call)]
        for oldest in going[: max(0, len(mine) - most)]:
            oldest.cancel()

    def _forget(self, callers: list[Caller], *, also_standing: bool = False) -> None:
        """Forget calls that have ended."""
        for caller in callers:
            if self._watch.is_active(caller) and not also_standing:
                continue
            worker = self._whose.pop(caller)
            self._of[worker].pop(caller, None)
            if not self._of[worker]:
                del self._of[worker]
