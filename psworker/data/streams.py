"""A stream of messages to one server: a gRPC call, or a socket."""

import logging
import queue
from collections.abc import Iterator
from typing import Any, Protocol

import grpc

from pswire.logs.events import event
from pswire.transport.failures import CallEnded
from pswire.transport.framed_socket import FramedSocket, Parts, SocketError, Stuck
from pswire.transport.frames import Message
from psworker.errors import SessionError

log = logging.getLogger("ps-worker")

_CODES = {code.value[0]: code for code in grpc.StatusCode}


class Stream(Protocol):
    """Messages in both directions. One thread at a time sends and receives.

    Every method but `close` raises grpc.RpcError when the stream breaks or the server ends it.
    """

    def send(self, message: Parts) -> None: ...

    def receive(self) -> Message | None:
        """Return the next message, valid until the following one; None when the server ended without a reason."""
        ...

    def close(self) -> None:
        """End the stream. Any thread may call this."""
        ...


class GrpcStream:
    """A call of the method Exchange. Raises SessionError while the session closes."""

    def __init__(self, channel: grpc.Channel) -> None:
        call: Any = channel.stream_stream("/pswire.v1.Shard/Exchange", None, None)
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        try:
            self._replies: Any = call(_until_none(self._requests))
        except ValueError as error:
            raise SessionError(f"the session is closed: {error}") from error

    def send(self, message: Parts) -> None:
        self._requests.put(b"".join(message))

    def receive(self) -> bytes | None:
        message: bytes | None = next(self._replies, None)
        return message

    def close(self) -> None:
        # Cancel first: a server that sees only the end of the requests ends the call without an answer, and the
        # client would take that for a final failure.
        self._replies.cancel()
        self._requests.put(None)


class SocketBroken(CallEnded):
    """A socket ended, with the status with which a gRPC stream would have ended."""


class SocketStream:
    """A framed socket. `where`: the server at its other end, for log lines. `stuck`: seconds without progress after
    which it is given up."""

    def __init__(self, connection: FramedSocket, where: str, stuck: float) -> None:
        connection.limit(stuck)
        self.connection, self._where, self._seconds = connection, where, stuck

    def send(self, message: Parts) -> None:
        try:
            self.connection.send(message)
        except SocketError as error:
            raise self._broken(error, grpc.StatusCode.UNAVAILABLE) from error

    def receive(self) -> Message | None:
        try:
            frame = self.connection.receive()
        except SocketError as error:
            raise self._broken(error, grpc.StatusCode.UNKNOWN) from error
        if frame is None:
            raise SocketBroken(grpc.StatusCode.UNAVAILABLE, "the connection to the server is cut")
        message, code = frame
        if code:
            details = bytes(message).decode(errors="replace")
            raise SocketBroken(_CODES.get(code, grpc.StatusCode.UNKNOWN), details)
        return message

    def _broken(self, error: SocketError, code: grpc.StatusCode) -> SocketBroken:
        if isinstance(error, Stuck):
            # What stands between may acknowledge for the dead, and then only progress tells.
            code = grpc.StatusCode.UNAVAILABLE
            log.warning(
                "nothing of a request to %s has moved for %.0f s; connecting again",
                *(self._where, self._seconds),
                extra=event("request_stuck", server=self._where, seconds=self._seconds),
            )
        return SocketBroken(code, str(error))

    def close(self) -> None:
        self.connection.close()


def _until_none(requests: "queue.SimpleQueue[bytes | None]") -> Iterator[bytes]:
    while (request := requests.get()) is not None:
        yield request
