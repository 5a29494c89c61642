"""What an exchange's messages travel on: a gRPC stream, or a plain socket beside one."""

import queue
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import grpc

from pswire.transport.failures import CallEnded
from pswire.transport.framed_socket import FramedSocket, Parts, SocketError
from pswire.transport.frames import Message
from psworker.errors import SessionError

CODES = {code.value[0]: code for code in grpc.StatusCode}


class Stream(Protocol):
    """Messages both ways. One thread at a time sends and receives; every method but `close` raises grpc.RpcError
    when the stream breaks or the server ends it."""

    def send(self, message: Parts) -> None: ...

    def receive(self) -> Message | None:
        """The next message, good until the one after it; None when the server ended the stream without a reason."""
        ...

    def close(self) -> None:
        """Also from another thread."""
        ...


class GrpcStream:
    """A call of Exchange. Raises SessionError when the session is being closed."""

    def __init__(self, channel: grpc.Channel) -> None:
        call: Any = channel.stream_stream("/pswire.v1.Shard/Exchange", None, None)
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        try:
            self._replies: Any = call(_drained(self._requests))
        except ValueError as error:
            raise SessionError(f"the session is closed: {error}") from error

    def send(self, message: Parts) -> None:
        self._requests.put(b"".join(message))

    def receive(self) -> bytes | None:
        message: bytes | None = next(self._replies, None)
        return message

    def when_over(self, call: Callable[[], object]) -> None:
        """`call()`, from any thread, once the stream is over; at once if it is."""
        if not self._replies.add_callback(call):
            call()

    def close(self) -> None:
        # First: a server that sees the end of the requests alone ends the call without an answer, which is no failure
        # that passes.
        self._replies.cancel()
        self._requests.put(None)


class SocketBroken(CallEnded):
    """Why a socket is over: it is treated as a gRPC stream that ended so."""


class SocketStream:
    """Ends with `liveness_stream`: a socket alone would not show that the server is stopped or stuck, which gRPC
    finds out by its pings."""

    def __init__(self, connection: FramedSocket, liveness_stream: GrpcStream) -> None:
        self.connection = connection
        liveness_stream.when_over(connection.cut)

    def send(self, message: Parts) -> None:
        try:
            self.connection.send(message)
        except SocketError as error:
            raise SocketBroken(grpc.StatusCode.UNAVAILABLE, str(error)) from error

    def receive(self) -> Message | None:
        try:
            frame = self.connection.receive()
        except SocketError as error:
            raise SocketBroken(grpc.StatusCode.UNKNOWN, str(error)) from error
        if frame is None:
            raise SocketBroken(grpc.StatusCode.UNAVAILABLE, "the connection to the server is cut")
        message, code = frame
        if code:
            raise SocketBroken(
                CODES.get(code, grpc.StatusCode.UNKNOWN), bytes(message).decode(errors="replace")
            )
        return message

    def close(self) -> None:
        self.connection.close()


def _drained(requests: "queue.SimpleQueue[bytes | None]") -> Iterator[bytes]:
    while (request := requests.get()) is not None:
        yield request
