"""Calls of a server: their deadlines, and how many one member or one address may hold."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import grpc

from psserver.service.errors import Refused
from psserver.service.guard.authorization import ANYBODY, Peer
from psserver.service.guard.limits import FIRST_MESSAGE, SILENT, UnprovenPeers
from pswire.patience import ping_interval
from pswire.transport import frames

# Bytes of the first piece. Two of them may be under way: on the slowest link a ping's answer still comes in time.
FIRST_PIECE: Final = 32 * 1024


@dataclass(slots=True)
class SendingPace:
    """Pieces of the payloads of one call grow while the link takes each at once, and shrink when it does not.

    A ping waits behind all that was handed to its connection before it. On a slow link a piece must therefore be
    small, or the answer to a ping comes too late and a worker that receives looks dead; on a fast one large
    pieces cost least.
    """

    worker_timeout: float
    piece: int = FIRST_PIECE

    def begin(self) -> None:
        """Another payload. Its first piece is taken at once whatever the link, and doubles the next."""
        self.piece = max(FIRST_PIECE, self.piece // 2)

    def sent(self, seconds: float) -> None:
        """The next piece is asked for, so long after the one before it was given."""
        # Two of them and the ping fit into half of the time that its answer is waited for.
        limit = ping_interval(self.worker_timeout) / 4
        if seconds > limit:
            self.piece = max(FIRST_PIECE, self.piece // 2)
        elif seconds < limit / 2:
            self.piece = min(frames.CHUNK_BYTES, self.piece * 2)


# Between looks at all calls; seconds.
LOOK_EVERY = 0.2


# Bytes from which a message is counted.
LARGE_MESSAGE = 2**16


class Caller:
    """The peer of one call: until when must it have moved? `deadline`: None while nothing is expected of it.

    `pace`: of what it is sent, once it was sent a version; None where `paced` is false. The loop's thread owns it.
    """

    __slots__ = ("_cut", "address", "cut_off", "deadline", "pace", "paced", "peer")

    def __init__(
        self, cut: Callable[[], object], paced: bool = True, peer: Peer = ANYBODY, address: str = ""
    ) -> None:
        """`cut` ends the call soon: whatever it waits for is cancelled. `paced`: pings share its connection. `peer`:
        who calls, if he was asked. `address`: of his machine, where that is known."""
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
        """The call is over: whoever still knows it keeps nothing of it."""
        self._cut = lambda: None

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """The peer must do what is waited for inside the block within so many seconds."""
        self.deadline = time.monotonic() + seconds
        try:
            yield
        finally:
            self.deadline = None


class Watch:
    """All calls of a server. The loop's thread owns it; close it at the end."""

    def __init__(self, silent_limit: int = int(SILENT.value)) -> None:
        """`silent_limit`: calls that have said nothing yet."""
        self._calls: set[Caller] = set()
        # Bytes of the last message of each call, either way, where it is large.
        self._messages: dict[Caller, int] = {}
        self.message_bytes = 0
        # The same, of calls that were cut while it was on its way.
        self._unread: dict[Caller, int] = {}
        # That have said nothing yet.
        self._silent: UnprovenPeers[Caller] = UnprovenPeers(silent_limit)
        self._next: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._next = loop.call_later(LOOK_EVERY, self._look, loop)

    def close(self) -> None:
        if self._next is not None:
            self._next.cancel()

    @property
    def silent(self) -> int:
        """Calls that have said nothing yet."""
        return len(self._silent)

    @property
    def silent_limit(self) -> int:
        """Of more, the oldest is cut of the address that has the most."""
        return self._silent.most

    @contextmanager
    def watching(self, caller: Caller) -> Iterator[Caller]:
        """Its deadlines hold inside the block."""
        self._calls.add(caller)
        try:
            yield caller
        finally:
            self._calls.discard(caller)
            self.set_message(caller, 0)
            caller.release()

    def is_active(self, caller: Caller) -> bool:
        """The call is under way, or was cut and its peer has not read what was sent before."""
        return caller in self._calls or caller in self._unread

    def unread(self, caller: Caller) -> bool:
        """The call was cut, and the transport still holds a large message for it."""
        return caller in self._unread

    def leave_unread(self, caller: Caller, nbytes: int, writing: "asyncio.Future[None]") -> None:
        """The call is cut while so many bytes are on their way: gRPC holds them until its peer reads or goes, when
        `writing` is done. They are counted until then."""
        self._unread[caller] = nbytes
        self.message_bytes += nbytes

        def gone(done: "asyncio.Future[None]") -> None:
            self.message_bytes -= self._unread.pop(caller)
            if not done.cancelled():
                # Looked at, lest it be logged: that the peer has gone is what was waited for.
                done.exception()

        writing.add_done_callback(gone)

    def set_message(self, caller: Caller, nbytes: int) -> None:
        """The call's present message has so many bytes; small ones are not counted."""
        before = self._messages.pop(caller, 0)
        if nbytes >= LARGE_MESSAGE:
            self._messages[caller] = nbytes
            self.message_bytes += nbytes
        self.message_bytes -= before

    @property
    def messages(self) -> list[tuple[Caller, int]]:
        """Large messages that are here: of whom, and bytes."""
        return [*self._messages.items(), *self._unread.items()]

    @contextmanager
    def first_message(self, caller: Caller) -> Iterator[None]:
        """The call's first message is awaited inside the block: in time, and among so many others at most. A new
        call that says nothing is cut before an older one that has spoken is refused anything."""
        for oldest in self._silent.admit(caller, caller.address):
            oldest.cancel()
        try:
            with caller.within(FIRST_MESSAGE.value):
                yield
        finally:
            self._silent.discard(caller)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = time.monotonic()
        late = [c for c in self._calls if c.deadline is not None and c.deadline < now]
        for caller in late:
            self._calls.discard(caller)
            caller.cancel()
        self._next = loop.call_later(LOOK_EVERY, self._look, loop)


class ConcurrentCalls:
    """At most `most` at once: of more, the oldest of the address that has the most is cut. The loop owns it."""

    def __init__(self, most: int) -> None:
        self._calls: UnprovenPeers[Caller] = UnprovenPeers(most)

    def __len__(self) -> int:
        return len(self._calls)

    @contextmanager
    def count(self, caller: Caller) -> Iterator[None]:
        """It is one of them inside the block."""
        for oldest in self._calls.admit(caller, caller.address):
            oldest.cancel()
        try:
            yield
        finally:
            self._calls.discard(caller)


class MemberCalls:
    """Payload calls by the member whose they are, once that is proven. The loop's thread owns it.

    `most`: of one member, now.
    """

    def __init__(self, most: Callable[[], int], watch: Watch) -> None:
        self._most, self._watch = most, watch
        self._of: dict[str, dict[Caller, None]] = {}
        self._whose: dict[Caller, str] = {}
        # Then those that have ended are looked for among all.
        self._enough = 64

    def member_of(self, caller: Caller) -> str | None:
        """The member's name; None while nobody has proven to be one."""
        return self._whose.get(caller)

    def claim(self, worker: str, caller: Caller) -> None:
        """The call is this member's. Of more than it may have, the oldest are cut: a worker that begins anew leaves
        broken ones behind. Raises Refused where those are cut already, and hold what the member does not read."""
        if self._whose.get(caller) == worker:
            return
        self._forget(list(self._of.get(worker, ())))
        if len(self._whose) >= self._enough:
            self._forget(list(self._whose))
            self._enough = 64 + 2 * len(self._whose)
        self._forget([caller] if caller in self._whose else [], also_standing=True)
        mine, most = self._of.setdefault(worker, {}), self._most()
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
        """Those that have ended."""
        for caller in callers:
            if self._watch.is_active(caller) and not also_standing:
                continue
            worker = self._whose.pop(caller)
            self._of[worker].pop(caller, None)
            if not self._of[worker]:
                del self._of[worker]
