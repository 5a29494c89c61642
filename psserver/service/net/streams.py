"""Streams of messages on which requests arrive, a gRPC call or a connection of a socket, and the chunks behind them."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from psserver.service.errors import invalid
from psserver.service.guard.calls import CallPeer
from psserver.service.net.registration import bounded
from pswire.bounds import HEADER_BYTES
from pswire.transport import frames
from pswire.transport.framed_socket import Parts
from pswire.transport.frames import FrameError, Message


class ServerStream(Protocol):
    """Messages both ways, in turn. `caller` is the other end."""

    @property
    def caller(self) -> CallPeer: ...

    async def receive(self) -> Message | None:
        """Return the next message, valid until the one after it; None at the end of the stream."""
        ...

    async def receive_many(self, take: Callable[[Message], bool]) -> None:
        """Pass messages that arrive without a pause to `take`, on another thread, until it returns False.

        A stream that cannot do that passes none. Raises what `take` raises.
        """
        ...

    async def send(self, parts: Parts) -> None:
        """Send one message, in pieces. The peer must read it in time."""
        ...

    async def send_many(self, messages: Iterator[Parts]) -> None:
        """Send large messages while the peer keeps up. They are made on another thread; a stream that cannot do
        that sends none."""
        ...


def request_in(kind: Any, received: Message) -> tuple[Any, memoryview | None]:
    """Return a request of that kind, and its chunk as a view of `received`. Raises Refused."""
    try:
        request, chunk = frames.parsed(kind, received, HEADER_BYTES)
    except FrameError as error:
        raise invalid(str(error)) from error
    return bounded(request), chunk


class RequestChunks:
    """The chunks of one request, in order: `first`, which came with it, and those that follow it on its stream.

    `kind`: of the stream's messages. `seconds`: that the peer may take for each. `alone`: no other request comes.
    """

    def __init__(
        self, stream: ServerStream, kind: Any, first: memoryview | None, seconds: float, alone: bool
    ) -> None:
        self._stream, self._kind, self._seconds, self._alone = stream, kind, seconds, alone
        self._first = first

    async def next(self) -> memoryview:
        """Return the next chunk, valid until the one after it. Raises Refused."""
        chunk, self._first = self._first, None
        if chunk is not None:
            return chunk
        with self._stream.caller.within(self._seconds):
            return self._chunk(await self._stream.receive())

    async def many(self, take: Callable[[memoryview], bool]) -> None:
        """Pass chunks that arrive without a pause to `take`, as `ServerStream.receive_many` does. Raises Refused."""
        with self._stream.caller.within(self._seconds):
            await self._stream.receive_many(lambda received: take(self._chunk(received)))

    async def end(self) -> None:
        """Raise Refused if there is another chunk."""
        with self._stream.caller.within(self._seconds):
            more = self._alone and await self._stream.receive() is not None
        if more or self._first is not None:
            raise invalid("expected no chunk behind the end of the payload, got one more")

    def _chunk(self, received: Message | None) -> memoryview:
        if received is None:
            raise invalid("expected more chunks of the payload, but the stream ended")
        request, chunk = request_in(self._kind, received)
        if chunk is None or any(field.name != "chunk" for field, _ in request.ListFields()):
            raise invalid("expected a chunk of the payload that was begun, got another request")
        return chunk
