"""Frames of large payloads on a socket, moved by a thread of a small pool.

The loop would wake up for every buffer of the kernel: some hundred times for a model of 67 MB. A thread moves frames
for one turn, and stops sooner where the peer makes it wait: a slow peer costs a descriptor, and no thread.
"""

import select
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from psserver.service.net.payloads import Buffers
from pswire.transport.framed_socket import FRAME_BYTES, HEAD, MORE, Carrier, Parts, SocketError
from pswire.transport.frames import Message

# Of a server, whatever the number of its workers.
THREADS: Final = 4
# After so many seconds a thread serves the next connection.
TURN: Final = 0.05
# How long a thread waits for a peer that is in the middle of a payload; milliseconds.
REST: Final = 2


class _Memory(threading.local):
    """A frame of each thread: what a connection receives here costs no memory of its own."""

    def __init__(self) -> None:
        self.frame = memoryview(bytearray(HEAD.size + FRAME_BYTES))


_memory = _Memory()


def receive(
    connected: Carrier, most: int, take: Callable[[Message], bool], begun: bytes | bytearray = b""
) -> bytes:
    """Hand frames of at most `most` bytes to `take`, until it returns False, the turn is over, or the peer rests;
    the beginning of the next frame is returned. `begun`: that of the first, less than a whole one.

    A frame is good until `take` returns. Raises SocketError at the end of the stream and for what is no frame, and
    what `take` raises.
    """
    frame, end = _memory.frame, time.monotonic() + TURN
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
        if not take(frame[HEAD.size : whole]) or time.monotonic() > end:
            return b""
        filled = 0


def send(connected: Carrier, messages: Iterator[Parts]) -> memoryview:
    """Send messages until there are no more, the turn is over, or the peer does not take them; what was begun and not
    sent is returned. The last part of a message is its payload.

    Raises SocketError when the other end is gone, and what `messages` raises.
    """
    end = time.monotonic() + TURN
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
        if time.monotonic() > end:
            break
    return memoryview(b"")


def _poll(connected: Carrier, event: int) -> Callable[[], bool]:
    """Waits until `connected` is ready, and for `REST` at most: is it?"""
    poll = select.poll()
    poll.register(connected, event)
    return lambda: bool(poll.poll(REST))


def fill(connected: Carrier, frame: memoryview, filled: int) -> int:
    """Receive the rest of one frame, until the turn is over or the peer rests: how much of it is there. Raises
    SocketError as `receive`."""
    end = time.monotonic() + TURN
    return _fill(connected, frame, filled, len(frame), _poll(connected, select.POLLIN), end)


def _fill(
    connected: Carrier, view: memoryview, filled: int, size: int, ready: Callable[[], bool], end: float
) -> int:
    """Receive until `size` bytes are there, the peer rests, or makes the thread wait beyond `end`: how many are."""
    while filled < size:
        try:
            count = connected.recv_into(view[filled:size])
        except (BlockingIOError, InterruptedError):
            # One that sends byte by byte never rests. Others have a second turn, for the end of a frame.
            if time.monotonic() > end or not ready():
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
    """Send `view`, or as much of it as the peer takes until it makes the thread wait beyond `end`: the rest."""
    while view:
        try:
            view = view[connected.send(view, flags) :]
        except (BlockingIOError, InterruptedError):
            if time.monotonic() > end or not ready():
                return view
        except OSError as error:
            raise SocketError(f"the other end is gone: {error.strerror}") from error
    return view


class LargeFrame:
    """One at a time: `begin` it, receive into `room`, count what came in `filled`, and `take` it once none is missing.

    `length`: of the whole frame, in bytes. The loop's thread owns it.
    """

    __slots__ = ("_buffers", "_memory", "_taken", "filled", "length")

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._memory: bytearray | None = None
        # The last whole frame's.
        self._taken: bytearray | None = None
        self.filled = self.length = 0

    @property
    def begun(self) -> bool:
        return self._memory is not None

    @property
    def missing(self) -> int:
        """Bytes that have not come."""
        return self.length - self.filled

    @property
    def fits(self) -> bool:
        """There is memory for all of it already."""
        return len(self._memory or b"") >= self.length

    @property
    def held(self) -> int:
        """Bytes of memory."""
        return len(self._memory or b"") + len(self._taken or b"")

    def begin(self, length: int, data: memoryview) -> None:
        """`data`: what has come of it."""
        self.length, self.filled = length, len(data)
        memory = self._buffers.take(length)
        self._memory = memory = self._buffers.at_least(memory, 0, len(data), length)
        memory[: len(data)] = data

    def room(self, most: int) -> memoryview:
        """For the next bytes, `most` of them at the most."""
        assert self._memory is not None
        self._memory = memory = self._buffers.at_least(self._memory, self.filled, 1, self.length)
        return memoryview(memory)[self.filled : min(len(memory), self.length, self.filled + most)]

    def all(self) -> memoryview:
        """The whole frame, whatever has come of it. Only where it `fits`."""
        return memoryview(self._memory or b"")[: self.length]

    def take(self) -> memoryview:
        """The frame, of which nothing is missing: good until `reuse`."""
        frame = self.all()
        self._taken, self._memory = self._memory, None
        return frame

    def reuse(self) -> None:
        """Nobody reads the frame that was taken any more."""
        if self._taken is not None:
            self._buffers.give(self._taken)
            self._taken = None

    def release(self) -> None:
        """The connection has no more use for memory."""
        if self._memory is not None:
            self._buffers.give(self._memory)
            self._memory = None
        self.reuse()
