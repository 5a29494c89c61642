"""Large frames: pooled memory for them, and threads that move them while the peer keeps up.

On the loop, a payload of 67 MB would cost some hundred wake-ups, one for each buffer of the kernel. A thread of a
small pool moves frames for one turn, and stops sooner if the peer makes it wait. So a slow peer holds a descriptor,
but no thread.
"""

import mmap
import select
import threading
from collections.abc import Callable, Iterator
from typing import Final

from pswire import running
from pswire.transport.framed_socket import FRAME_BYTES, HEAD, LARGE, MORE, Carrier, Parts, SocketError
from pswire.transport.frames import Message

# Threads of a server, whatever the number of its workers.
THREADS: Final = 4
# Seconds after which a thread serves the next connection.
TURN: Final = 0.05
# Milliseconds that a thread waits for a peer in the middle of a payload.
REST: Final = 2
# Bytes received at once while no large frame is being received: room for a small one. What it holds of a large one
# has to be copied.
SMALL: Final = LARGE
# Free buffers that are kept for the next large frame.
FREE_BUFFERS: Final = 4


class _Memory(threading.local):
    """One frame per thread: a connection that receives here needs no memory of its own."""

    def __init__(self) -> None:
        self.frame = memoryview(bytearray(HEAD.size + FRAME_BYTES))


_memory = _Memory()


def receive(
    connected: Carrier, most: int, take: Callable[[Message], bool], begun: bytes | bytearray = b""
) -> bytes:
    """Pass frames of at most `most` bytes to `take` until it returns False, the turn is over, or the peer pauses.

    `begun` holds the start of the first frame. Returns the start of the next one. A frame is valid until `take`
    returns. Raises SocketError at the end of the stream and for a malformed frame, and whatever `take` raises.
    """
    frame, end = _memory.frame, running.now() + TURN
    poll = _poll(connected, select.POLLIN)
    filled = len(begun)
    frame[:filled] = begun
    while True:
        filled = _fill(connected, frame, filled, HEAD.size, poll, end + TURN)
        if filled < HEAD.size:
            return bytes(frame[:filled])
        length, _ = HEAD.unpack_from(frame)
        if length > most:
            raise SocketError(f"expected a frame of at most {most} bytes, got one of {length}")
        whole = HEAD.size + length
        filled = _fill(connected, frame, filled, whole, poll, end + TURN)
        if filled < whole:
            return bytes(frame[:filled])
        if not take(frame[HEAD.size : whole]) or running.now() > end:
            return b""
        filled = 0


def send(connected: Carrier, messages: Iterator[Parts]) -> memoryview:
    """Send messages until none are left, the turn is over, or the peer pauses; return the unsent rest of the last one.

    The last part of each message is its payload. Raises SocketError if the peer has closed, and whatever `messages`
    raises.
    """
    end = running.now() + TURN
    poll = _poll(connected, select.POLLOUT)
    for *few, payload in messages:
        length = sum(map(len, few)) + len(payload)
        head = memoryview(b"".join((HEAD.pack(length, 0), *few)))
        rest = _give(connected, head, MORE, poll, end + TURN)
        if rest:
            return memoryview(b"".join((rest, payload)))
        rest = _give(connected, memoryview(payload), 0, poll, end + TURN)
        if rest:
            return rest
        if running.now() > end:
            break
    return memoryview(b"")


def _poll(connected: Carrier, event: int) -> Callable[[], bool]:
    """Return a function that waits for `connected`, at most `REST`, and returns whether it is ready."""
    poll = select.poll()
    poll.register(connected, event)
    return lambda: bool(poll.poll(REST))


def _fill(
    connected: Carrier, view: memoryview, filled: int, size: int, ready: Callable[[], bool], end: float
) -> int:
    """Receive up to `size` bytes into `view`; return how many it holds when the peer pauses or `end` has passed."""
    while filled < size:
        try:
            count = connected.recv_into(view[filled:size])
        except (BlockingIOError, InterruptedError):
            # A peer that sends byte by byte never pauses; `end` stops it. Others get a second turn for the rest of a
            # frame.
            if running.now() > end or not ready():
                return filled
            continue
        except OSError as error:
            raise SocketError(f"the other end is gone: {error.strerror}") from error
        if not count:
            raise SocketError("the other end is gone in the middle of a payload")
        filled += count
    return filled


def _give(
    connected: Carrier, view: memoryview, flags: int, ready: Callable[[], bool], end: float
) -> memoryview:
    """Send `view` until the peer pauses or `end` has passed; return what is left of it."""
    while view:
        try:
            view = view[connected.send(view, flags) :]
        except (BlockingIOError, InterruptedError):
            if running.now() > end or not ready():
                return view
        except OSError as error:
            raise SocketError(f"the other end is gone: {error.strerror}") from error
    return view


class Buffers:
    """Receive buffers of all connections. The loop's thread owns it."""

    def __init__(self) -> None:
        # Small frames of all connections are received here; no data stays in it.
        self.small = bytearray(SMALL)
        self.view = memoryview(self.small)
        self._free: list[memoryview] = []

    def take(self) -> memoryview:
        """Return a buffer for a large frame. The system gives its memory as bytes arrive."""
        return self._free.pop() if self._free else memoryview(mmap.mmap(-1, FRAME_BYTES))

    def give(self, buffer: memoryview) -> None:
        """Take a buffer back."""
        if len(self._free) < FREE_BUFFERS:
            self._free.append(buffer)


class LargeFrame:
    """The large frame that a connection receives: `begin`, receive into `room`, add to `filled`, then `take`.

    `length`: bytes of the whole frame. The loop's thread owns it.
    """

    __slots__ = ("_buffers", "_memory", "_taken", "filled", "length")

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._memory: memoryview | None = None
        # Memory of the last whole frame, until `reuse`.
        self._taken: memoryview | None = None
        self.filled = self.length = 0

    @property
    def begun(self) -> bool:
        return self._memory is not None

    @property
    def missing(self) -> int:
        """Bytes that have not arrived."""
        return self.length - self.filled

    def begin(self, length: int, data: memoryview) -> None:
        """Begin a frame of `length` bytes whose first bytes are `data`."""
        self._memory = memory = self._buffers.take()
        self.length, self.filled = length, len(data)
        memory[: len(data)] = data

    def room(self, most: int) -> memoryview:
        """Return room for the next bytes, at most `most`."""
        assert self._memory is not None
        return self._memory[self.filled : min(self.length, self.filled + most)]

    def take(self) -> memoryview:
        """Return the complete frame; it is valid until `reuse`."""
        assert self._memory is not None
        self._taken, self._memory = self._memory, None
        return self._taken[: self.length]

    def reuse(self) -> None:
        """Return the memory of the taken frame to the pool."""
        if self._taken is not None:
            self._buffers.give(self._taken)
            self._taken = None

    def release(self) -> None:
        """Return all memory to the pool."""
        if self._memory is not None:
            self._buffers.give(self._memory)
            self._memory = None
        self.reuse()
