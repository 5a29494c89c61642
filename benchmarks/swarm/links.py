"""What a light member's words travel on, in one event loop: sockets, and gRPC streams."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio

from pswire.transport.channels import CHANNEL_OPTIONS
from pswire.transport.framed_socket import FRAME_BYTES

HEAD = struct.Struct("<IB")
# Of the first answer on a new socket, and of a stream's first message; seconds.
PATIENCE = 30.0

Deliver = Callable[[bytes], None]
Ended = Callable[[int, str], None]


def channel(address: str, *, payloads: bool = False, timeout: float = 10.0) -> grpc.aio.Channel:
    """A connection of its own, as every worker has."""
    options = [*CHANNEL_OPTIONS(timeout, payloads=payloads), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.aio.insecure_channel(address, options)


class Frames:
    """Cuts what a socket brings into frames."""

    def __init__(self) -> None:
        self._waiting = bytearray()

    def feed(self, data: bytes) -> list[tuple[bytes, int]]:
        """Whole frames and their codes."""
        waiting = self._waiting
        if waiting:
            waiting += data
            data = bytes(waiting)
            waiting.clear()
        found, at, end = [], 0, len(data)
        while end - at >= HEAD.size:
            length, code = HEAD.unpack_from(data, at)
            if length > FRAME_BYTES:
                raise ValueError(f"expected a frame of at most {FRAME_BYTES} bytes, got one of {length}")
            if end - at < HEAD.size + length:
                break
            found.append((data[at + HEAD.size : at + HEAD.size + length], code))
            at += HEAD.size + length
        waiting += data[at:]
        return found


class SocketLink(asyncio.Protocol):
    """Frames over TCP; see `pswire.transport.framed_socket`."""

    def __init__(self, deliver: Deliver, ended: Ended) -> None:
        self._deliver, self._ended = deliver, ended
        self._frames = Frames()
        self._transport: Any = None
        self._accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def opened(cls, host: str, port: int, claim: bytes, deliver: Deliver, ended: Ended) -> "SocketLink":
        """Raises OSError."""
        link = cls(deliver, ended)
        async with asyncio.timeout(PATIENCE):
            await asyncio.get_running_loop().create_connection(lambda: link, host, port)
            link.send(claim)
            await link._accepted
        return link

    def send(self, message: bytes) -> None:
        self._transport.write(HEAD.pack(len(message), 0) + message)

    def close(self) -> None:
        self._transport.abort()

    # Called by the loop

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for message, code in self._frames.feed(data):
            if not self._accepted.done():
                self._accepted.set_result(None)
            elif code:
                self._finish(code, message.decode(errors="replace"))
            else:
                self._deliver(message)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._accepted.done():
            self._accepted.set_exception(OSError("the server did not accept this connection"))
        else:
            self._finish(14, str(error or "the connection is closed"))

    def _finish(self, code: int, reason: str) -> None:
        ended, self._ended = self._ended, lambda code, reason: None
        self._transport.abort()
        ended(code, reason)


class GrpcLink:
    """Raw messages of one stream."""

    def __init__(self, call: Any, deliver: Deliver, ended: Ended) -> None:
        self._outgoing: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._call = call(self._drained())
        self._deliver, self._ended = deliver, ended
        self._reading = asyncio.create_task(self._read())

    async def _drained(self) -> AsyncIterator[bytes]:
        while (message := await self._outgoing.get()) is not None:
            yield message

    def send(self, message: bytes) -> None:
        self._outgoing.put_nowait(message)

    def close(self) -> None:
        self._ended = lambda code, reason: None
        self._call.cancel()
        self._reading.cancel()

    async def _read(self) -> None:
        with suppress(asyncio.CancelledError):
            try:
                while (message := await self._call.read()) is not grpc.aio.EOF:
                    self._deliver(message)
                code, details = await self._call.code(), await self._call.details()
            except grpc.aio.AioRpcError as error:
                code, details = error.code(), error.details()
            self._ended(code.value[0], details or code.name)
