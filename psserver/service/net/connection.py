"""One connection of a worker on the event loop: frames in, frames out, and nothing blocks.

The wire is that of `pswire.transport.framed_socket`, whose `FramedSocket` is the worker's end. `_readable` receives
everything: small frames by way of `_ahead`, a large one in pooled memory. What follows the first frame of a large
payload without a pause, a thread receives instead (`psserver.service.net.bulk`).
"""

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

from psserver.service.guard.calls import CallPeer
from psserver.service.net import bulk
from psserver.service.net.bulk import Buffers, LargeFrame
from psserver.service.net.loop import LoopSteps, loop_time, paused
from psserver.service.pools import Pool
from pswire.transport.framed_socket import (
    FRAME_BYTES,
    HEAD,
    LARGE,
    MORE,
    Carrier,
    Parts,
    SocketError,
    keep_alive,
)
from pswire.transport.frames import Message
from pswire.transport.segments import Segment

# Bytes of a large frame that one turn of the loop receives or sends: other connections wait no longer.
SLICE: Final = 2**20
# Bytes that are received before the task asks for them; beyond that the peer waits.
AHEAD: Final = LARGE


def _is_whole(ahead: bytearray) -> bool:
    """Return whether `ahead` holds its first frame to the end."""
    return len(ahead) >= HEAD.size and len(ahead) >= HEAD.size + HEAD.unpack_from(ahead)[0]


class SocketConnection:
    """A connection, and the one task that calls `receive` and `send`. The socket closes when the task ends.

    It is a `psserver.service.net.streams.ServerStream`. The loop's thread owns it.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connected: Carrier,
        buffers: Buffers,
        threads: Pool,
        address: str,
        patience: Callable[[int], float],
    ) -> None:
        """`threads` move large payloads. `patience`: seconds that the peer may take to read a given number of bytes.

        Raises OSError if the socket is closed already.
        """
        connected.setblocking(False)
        keep_alive(connected)
        self._loop, self._socket, self._buffers = loop, connected, buffers
        self._threads, self._patience = threads, patience
        self._descriptor = connected.fileno()
        self.caller = CallPeer(self.cut, paced=False, address=address)
        self._steps: LoopSteps | None = None
        # What the task waits for: "frame", "room" (to send) or another event.
        self._waits_for = ""
        # Bytes that the task has not asked for yet: small frames, or the start of one.
        self._ahead = bytearray()
        self._paused = False
        self._large = LargeFrame(buffers)
        self._most = FRAME_BYTES
        self._broken: SocketError | None = None
        self._end_of_stream = False
        self._draining = False
        # Go with the next frame.
        self._lent: list[Segment] = []

    def run(
        self, coroutine: Coroutine[Any, Any, object], ended: Callable[[BaseException | None], object]
    ) -> None:
        """Run the coroutine as a task. When it ends, close the socket and call `ended` with its error."""

        def over(error: BaseException | None) -> None:
            self._close()
            ended(error)

        self._listen()
        self._steps = LoopSteps(self._loop, coroutine, over)
        self._loop.call_soon(self._steps.resume)

    @property
    def socket(self) -> Carrier:
        """The socket, to be looked at only."""
        return self._socket

    @property
    def local(self) -> bool:
        """Whether the other end is on this machine."""
        return self._socket.family == socket.AF_UNIX

    def cut(self) -> None:
        """Cancel the task, whatever it waits for. May be called repeatedly."""
        if self._steps is not None:
            self._steps.cancel()

    async def _wait_for(self, what: str) -> Any:
        """Suspend the task until `_give`; return what that gives."""
        self._waits_for = what
        try:
            return await paused()
        finally:
            self._waits_for = ""

    async def rest(self) -> None:
        """Wait for `wake`."""
        await self._wait_for("wake")

    def wake(self) -> None:
        """Run the task at once, if it rests. Not from within it."""
        if self._waits_for == "wake":
            self._give(None)

    def _give(self, value: object) -> None:
        """Run the task, which waits, until its next wait."""
        assert self._steps is not None and self._waits_for
        self._steps.resume(value)

    # Receiving

    def expect(self, most: int) -> None:
        """Limit frames to `most` bytes."""
        self._most = most

    async def receive(self) -> Message | None:
        """Return the next frame, or None at the end of the stream. Raises SocketError for a malformed frame.

        The memory of a large frame is reused by the next `receive`.
        """
        self._large.reuse()
        if self._broken is not None:
            raise self._broken
        if self._ahead:
            # The frame may be here already; other connections come first all the same.
            self._loop.call_soon(self._look_ahead)
        elif self._end_of_stream:
            return None
        if self._paused:
            self._paused = False
            self._listen()
        frame: Message | None = await self._wait_for("frame")
        if frame is None and self._broken is not None:
            raise self._broken
        return frame

    async def receive_many(self, take: Callable[[Message], bool]) -> None:
        """Pass frames that arrive without a pause to `take`, on another thread, until it returns False.

        Does nothing if a whole frame is here already: `receive` returns it. The frame of the last `receive` stays
        valid until the next one. Raises SocketError, and whatever `take` raises.
        """
        if self._broken is not None or self._end_of_stream or _is_whole(self._ahead):
            return
        ahead, self._ahead, self._paused = self._ahead, bytearray(), False
        self._stop_reading()
        try:
            begun = await self._threads.on_pool(lambda: bulk.receive(self._socket, self._most, take, ahead))
        finally:
            self._listen()
        length = HEAD.unpack_from(begun)[0] if len(begun) >= HEAD.size else 0
        if length < LARGE:
            self._ahead += begun
        else:
            self._large.begin(length, memoryview(begun)[HEAD.size :])

    def _readable(self) -> None:
        waits = self._waits_for == "frame"
        if waits and self._large.begun:
            self._fill()
            return
        # A large frame that a thread has begun is received only for a task that waits for it.
        if not waits and (self._large.begun or len(self._ahead) >= AHEAD):
            self._paused = True
            self._stop_reading()
            return
        try:
            count = self._socket.recv_into(self._buffers.small)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            count = 0
        if not count:
            self._over()
        elif self._draining:
            return
        elif self._ahead or not waits:
            self._ahead += self._buffers.view[:count]
            self._look_ahead()
        else:
            self._parse(self._buffers.view[:count])

    def _look_ahead(self) -> None:
        """Give the first frame of `_ahead` to a task that waits for one."""
        if self._ahead and self._waits_for == "frame" and not self._large.begun:
            data, self._ahead = self._ahead, bytearray()
            self._parse(memoryview(data))

    def _parse(self, data: memoryview) -> None:
        """Give the first frame of `data` to the task, which waits for one; keep what follows it in `_ahead`."""
        length, end = 0, HEAD.size
        if len(data) >= end:
            length, _ = HEAD.unpack_from(data)
            end += length
        if length > self._most:
            self._break(f"expected a frame of at most {self._most} bytes, got one of {length}")
        elif length >= LARGE:
            self._large.begin(length, data[HEAD.size : end])
            self._ahead += data[end:]
            self._fill()
        elif len(data) < end:
            self._ahead += data
        else:
            self._ahead += data[end:]
            self._give(bytes(data[HEAD.size : end]))

    def _fill(self) -> None:
        """Receive what has arrived of the large frame that has begun, at most a slice."""
        large, left = self._large, SLICE
        while left > 0 and large.missing:
            try:
                count = self._socket.recv_into(large.room(left))
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                count = 0
            if not count:
                self._over()
                return
            large.filled += count
            left -= count
        if not large.missing:
            self._give(large.take())

    def _break(self, reason: str) -> None:
        self._broken = SocketError(reason)
        self._stop_reading()
        if self._waits_for == "frame":
            self._give(None)

    def _over(self) -> None:
        """End the stream, which the other end has closed, for a task that waits for a frame; cut any other."""
        self._end_of_stream = True
        self._stop_reading()
        if self._waits_for == "frame" and not self._draining:
            self._give(None)
        else:
            self.cut()

    def _listen(self) -> None:
        self._loop.add_reader(self._descriptor, self._readable)

    def _stop_reading(self) -> None:
        self._loop.remove_reader(self._descriptor)

    # Sending

    async def send(self, parts: Parts, code: int = 0) -> None:
        """Send one message, which the peer must read in time. Raises SocketError if it has closed, or is too long."""
        length = sum(map(len, parts))
        if length > FRAME_BYTES:
            raise SocketError(f"expected a message of at most {FRAME_BYTES} bytes, got {length}")
        head = HEAD.pack(length, code)
        # As `CallPeer.within`, which as a context manager costs more at every step.
        caller = self.caller
        caller.deadline = loop_time() + self._patience(length)
        try:
            if length < LARGE:
                await self._send(b"".join((head, *parts)))
            else:
                # The last part is the payload; all others have some hundred bytes.
                *few, payload = parts
                await self._send(b"".join((head, *few)), MORE)
                await self._send(payload)
        finally:
            caller.deadline = None

    async def send_many(self, messages: Iterator[Parts]) -> None:
        """Send large messages from another thread while the peer keeps up. Raises as `send` and `messages` do."""
        with self.caller.within(self._patience(FRAME_BYTES)):
            rest = await self._threads.on_pool(lambda: bulk.send(self._socket, messages))
            await self._send(rest)

    def lend(self, segments: Sequence[Segment]) -> None:
        """Hand shared memory over with the next frame. On a connection that is `local` only."""
        self._lent += segments

    def _write(self, data: memoryview, flags: int) -> int:
        if not self._lent:
            return self._socket.send(data, flags)
        assert isinstance(self._socket, socket.socket)
        count = socket.send_fds(self._socket, [data], [segment.place.fd for segment in self._lent])
        self._lent.clear()
        return count

    async def _send(self, data: "bytes | memoryview", flags: int = 0) -> None:
        view, left = memoryview(data), SLICE
        while view:
            try:
                count = self._write(view[:left], flags)
            except (BlockingIOError, InterruptedError):
                count = left = 0
            except OSError as error:
                raise SocketError(f"the other end is gone: {error.strerror}") from error
            view = view[count:]
            left -= count
            if view and left <= 0:
                await self._room()
                left = SLICE

    async def _room(self) -> None:
        """Wait until more can be sent."""
        self._loop.add_writer(self._descriptor, self._writable)
        try:
            await self._wait_for("room")
        finally:
            self._loop.remove_writer(self._descriptor)

    def _writable(self) -> None:
        self._loop.remove_writer(self._descriptor)
        if self._waits_for == "room":
            self._give(None)

    # The end

    async def drain(self, seconds: float) -> None:
        """After the last frame, wait up to `seconds` for the other end to close; that cancels the task.

        A socket that is closed with unread bytes discards what was sent on it last.
        """
        if self._end_of_stream or self._broken is not None:
            return
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            # The other end has closed.
            return
        self._draining = True
        self._ahead.clear()
        self._large.release()
        if self._paused:
            self._paused = False
            self._listen()
        with self.caller.within(seconds):
            await self._wait_for("the end")

    def _close(self) -> None:
        self._large.release()
        self._stop_reading()
        self._loop.remove_writer(self._descriptor)
        with suppress(OSError):
            # The other end may have closed.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
