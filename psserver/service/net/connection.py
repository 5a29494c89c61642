"""One connection of a worker's socket, on the event loop: frames in, frames out, and neither ever blocks.

The wire is that of `pswire.transport.framed_socket`, whose `FramedSocket` is the worker's end.
"""

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any, Final

from psserver.service.net import bulk
from psserver.service.net.bulk import LargeFrame
from psserver.service.net.loop import HeavyWork, Steps, parked
from psserver.service.net.payloads import Buffers
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

# What one turn receives or sends of a large frame: others wait no longer for their turn.
SLICE: Final = 2**20
# What is received for a connection that does not want it yet; its peer waits then.
AHEAD: Final = LARGE
# In place of a frame: it has begun, and there is much of it.
_BEGUN: Final[Message] = b"begun"


def _is_whole(ahead: bytearray) -> bool:
    """Does it hold the first frame to its end?"""
    return len(ahead) >= HEAD.size and len(ahead) >= HEAD.size + HEAD.unpack_from(ahead)[0]


class Connection:
    """Runs one coroutine, which alone calls `receive` and `send`, until it ends; then the socket is closed.

    The loop's thread owns it. Raises OSError when it is made of a socket that is over already.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connected: Carrier,
        buffers: Buffers,
        threads: HeavyWork,
    ) -> None:
        """`threads`: for what is sent and received in bulk."""
        connected.setblocking(False)
        keep_alive(connected)
        self._loop, self._socket, self._buffers = loop, connected, buffers
        self._threads = threads
        self._descriptor = connected.fileno()
        self._steps: Steps | None = None
        # What the coroutine waits for: "frame", "room" (to send), or something that is not here.
        self._waits_for = ""
        # Received, and not asked for yet; small frames, or the beginning of one.
        self._ahead = bytearray()
        self._paused = False
        self._large = LargeFrame(buffers)
        self._most = FRAME_BYTES
        self._broken: SocketError | None = None
        self._end_of_stream = False
        self._draining = False

    def run(
        self, coroutine: Coroutine[Any, Any, object], ended: Callable[[BaseException | None], object]
    ) -> None:
        """`ended(error)` is called once, when the coroutine has ended and the socket is closed."""

        def over(error: BaseException | None) -> None:
            self._close()
            ended(error)

        self._steps = Steps(self._loop, coroutine, over)
        self._listen()
        self._steps.resume()

    @property
    def held(self) -> int:
        """Bytes of buffers for large frames."""
        return self._large.held

    @property
    def socket(self) -> Carrier:
        """To be looked at."""
        return self._socket

    def cut(self) -> None:
        """End it soon, whatever it waits for. Any number of times."""
        if self._steps is not None:
            self._steps.cancel()

    @property
    def fingerprint(self) -> bytes | None:
        """Of the certificate that the other end has shown; None where it was not asked for one."""
        return None

    # Receiving

    def expect(self, most: int) -> None:
        """No frame may be longer."""
        self._most = most

    async def receive(self) -> Message | None:
        """The next frame; None when the stream is over. Raises SocketError for what is no frame.

        A large frame lies in memory that is used again after the next `receive`.
        """
        self._large.reuse()
        if self._broken is not None:
            raise self._broken
        if self._ahead:
            # Asked for before its turn: others come first.
            self._loop.call_soon(self._look_ahead)
        elif self._end_of_stream:
            return None
        if self._paused:
            self._paused = False
            self._listen()
        self._waits_for = "frame"
        frame: Message | None = await parked()
        if frame is None and self._broken is not None:
            raise self._broken
        if frame is _BEGUN:
            return await self._rest_of_large()
        return frame

    async def _rest_of_large(self) -> Message | None:
        """Of a frame that has begun, and fits into a buffer that is here already: a thread receives it, and the loop
        what the peer makes wait for."""
        self._stop_reading()
        large = self._large
        into, begun = large.all(), large.filled
        try:
            large.filled = await self._threads.on_pool(lambda: bulk.fill(self._socket, into, begun))
        finally:
            self._listen()
        if not large.missing:
            return large.take()
        self._waits_for = "frame"
        frame: Message | None = await parked()
        return frame

    async def receive_many(self, take: Callable[[Message], bool]) -> None:
        """Frames that come without a pause, each handed to `take` on another thread, until it returns False; none where
        a whole one is here already. `receive` may follow. Raises SocketError, and what `take` raises.

        What the last `receive` gave stays good until the next.
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

    def _give(self, frame: Message | None) -> None:
        self._waits_for = ""
        assert self._steps is not None
        self._steps.resume(frame)

    def _readable(self) -> None:
        waits = self._waits_for == "frame"
        if waits and self._large.begun:
            self._fill()
            return
        # A large frame that was begun in bulk is given to nobody but who waits for it.
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
        elif self._ahead or self._waits_for != "frame":
            self._ahead += self._buffers.view[:count]
            self._look_ahead()
        else:
            self._parse(self._buffers.view[:count])

    def _look_ahead(self) -> None:
        if self._ahead and self._waits_for == "frame" and not self._large.begun:
            data, self._ahead = self._ahead, bytearray()
            self._parse(memoryview(data))

    def _parse(self, data: memoryview) -> None:
        """Give the first frame of `data`, if it is whole; what is left of it is kept."""
        if len(data) < HEAD.size:
            self._ahead += data
            return
        length, _ = HEAD.unpack_from(data)
        if length > self._most:
            self._break(f"expected a frame of at most {self._most} bytes, got one of {length}")
            return
        end = HEAD.size + length
        if length >= LARGE:
            self._large.begin(length, data[HEAD.size : end])
            self._ahead += data[end:]
            if self._large.fits and self._large.missing >= SLICE:
                self._give(_BEGUN)
            else:
                self._fill()
        elif len(data) < end:
            self._ahead += data
        else:
            self._ahead += data[end:]
            self._give(bytes(data[HEAD.size : end]))

    def _fill(self) -> None:
        """Receive more of a large frame: as much as is here, and no more than a slice."""
        large, left = self._large, SLICE
        while left > 0 and large.begun and large.missing:
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
        if large.begun and not large.missing:
            self._give(large.take())

    def _break(self, reason: str) -> None:
        self._broken = SocketError(reason)
        self._stop_reading()
        if self._waits_for == "frame":
            self._give(None)

    def _over(self) -> None:
        """The other end is gone: whatever is waited for on its behalf is waited for no longer."""
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
        """Raises SocketError when the other end is gone, or for a message that is too long."""
        length = sum(map(len, parts))
        if length > FRAME_BYTES:
            raise SocketError(f"expected a message of at most {FRAME_BYTES} bytes, got {length}")
        head = HEAD.pack(length, code)
        if length < LARGE:
            await self._send(b"".join((head, *parts)))
        else:
            # The last part is the payload: everything before it is some hundred bytes.
            *few, payload = parts
            await self._send(b"".join((head, *few)), MORE)
            await self._send(payload)

    async def send_many(self, messages: Iterator[Parts]) -> None:
        """Of `messages`, whose last parts are large, as many as the other end takes without a pause, from another
        thread. Raises SocketError, and what `messages` raises."""
        rest = await self._threads.on_pool(lambda: bulk.send(self._socket, messages))
        await self._send(rest)

    async def _send(self, data: "bytes | memoryview", flags: int = 0) -> None:
        view, left = memoryview(data), SLICE
        while view:
            try:
                count = self._socket.send(view[:left], flags)
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
        """Until more can be sent."""
        self._loop.add_writer(self._descriptor, self._writable)
        self._waits_for = "room"
        try:
            await parked()
        finally:
            self._loop.remove_writer(self._descriptor)

    def _writable(self) -> None:
        self._loop.remove_writer(self._descriptor)
        if self._waits_for == "room":
            self._give(None)

    # The end

    async def drain(self) -> None:
        """After the last frame: until the other end has closed, which cancels this. A socket that is closed with
        something unread takes back what was sent on it last."""
        if self._end_of_stream or self._broken is not None:
            return
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            # It is over already.
            return
        self._draining = True
        self._ahead.clear()
        self._large.release()
        if self._paused:
            self._paused = False
            self._listen()
        self._waits_for = "the end"
        await parked()

    def _close(self) -> None:
        self._large.release()
        self._stop_reading()
        self._loop.remove_writer(self._descriptor)
        with suppress(OSError):
            # It may be over already.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
