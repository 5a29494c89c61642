"""One stream to one server that carries requests and their answers, in turn: a gRPC call, or a socket."""

import logging
import queue
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import grpc
import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from pswire.bounds import BoundError, check, checker
from pswire.logs.events import event
from pswire.transport import frames
from pswire.transport.codecs import ElementDecoder, Elementwise, WireDtypeError
from pswire.transport.failures import CallEnded
from pswire.transport.framed_socket import FramedSocket, Parts, SocketError, Stuck
from pswire.transport.frames import Message
from pswire.v1 import shard_pb2
from psworker.control.backoff import out_of_bounds
from psworker.errors import SessionError

log = logging.getLogger("ps-worker")

# Looked up once, because every step needs it.
_CHECK = checker(shard_pb2.ExchangeReply.DESCRIPTOR)
_CODES = {code.value[0]: code for code in grpc.StatusCode}

Answer = tuple[shard_pb2.ExchangeReply, memoryview | None]
"""The first message of an answer, and the chunk of a payload in it."""


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
        except Stuck as error:
            raise self._stuck(error) from error
        except SocketError as error:
            raise SocketBroken(grpc.StatusCode.UNAVAILABLE, str(error)) from error

    def _stuck(self, error: Stuck) -> SocketBroken:
        """Say that the connection is given up. What stands between may acknowledge for the dead, and then only
        progress tells."""
        log.warning(
            "nothing of a request to %s has moved for %.0f s; connecting again",
            *(self._where, self._seconds),
            extra=event("request_stuck", server=self._where, seconds=self._seconds),
        )
        return SocketBroken(grpc.StatusCode.UNAVAILABLE, str(error))

    def receive(self) -> Message | None:
        try:
            frame = self.connection.receive()
        except Stuck as error:
            raise self._stuck(error) from error
        except SocketError as error:
            raise SocketBroken(grpc.StatusCode.UNKNOWN, str(error)) from error
        if frame is None:
            raise SocketBroken(grpc.StatusCode.UNAVAILABLE, "the connection to the server is cut")
        message, code = frame
        if code:
            details = bytes(message).decode(errors="replace")
            raise SocketBroken(_CODES.get(code, grpc.StatusCode.UNKNOWN), details)
        return message

    def close(self) -> None:
        self.connection.close()


class Exchange:
    """Requests and answers over a stream that opens with the first request, and again after it broke.

    The thread that holds the server's `turn` uses it; any thread may `close` it. Every method raises grpc.RpcError
    when the stream breaks or the server refuses; the next request then opens a new stream.
    """

    def __init__(self, connect: Callable[[], Stream], stream: Stream | None = None) -> None:
        self._connect = connect
        self._stream = stream

    @property
    def open(self) -> bool:
        """Whether a stream stands, and with it what was agreed on it."""
        return self._stream is not None

    def ask(self, requests: Iterable[Parts]) -> Answer:
        """Send the messages of one request and return the first message of its answer."""
        stream = self._stream
        try:
            if stream is None:
                stream = self._stream = self._connect()
            for request in requests:
                stream.send(request)
            return _parsed(stream.receive())
        except BaseException:
            self.close()
            raise

    def payload(
        self,
        answer: Answer,
        codec: Elementwise,
        out: NDArray[Any],
        arrived: Callable[[int], object] = lambda nbytes: None,
    ) -> None:
        """Receive the payload that begins in `answer` into `out`: float32, or the codec's `array_dtype`. `arrived`:
        called with the number of bytes that are here, while others are on their way."""
        try:
            self._receive(*answer, codec, out, arrived)
        except BaseException:
            self.close()
            raise

    def rows(self, answer: Answer, expected: int) -> memoryview:
        """Receive that many bytes of rows behind a payload, which has been received."""
        try:
            if answer[0].row_bytes != expected:
                raise SessionError(f"expected {expected} bytes of rows, got {answer[0].row_bytes}")
            data, received = np.empty(expected, np.uint8).data, 0
            while received < expected:
                chunk = _fitting(self._next_chunk(), expected - received)
                data[received : received + chunk.nbytes] = chunk
                received += chunk.nbytes
            return data
        except BaseException:
            self.close()
            raise

    def _next_chunk(self) -> memoryview | None:
        stream = self._stream
        if stream is None:
            # Another thread closed it. The server has refused nothing, so this counts as a broken connection.
            raise CallEnded(grpc.StatusCode.CANCELLED, "the exchange was closed here")
        return _parsed(stream.receive())[1]

    def close(self) -> None:
        """End the stream. Any thread may call this."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def _receive(
        self,
        first: shard_pb2.ExchangeReply,
        chunk: memoryview | None,
        codec: Elementwise,
        out: NDArray[Any],
        arrived: Callable[[int], object],
    ) -> None:
        total, received, decoder = codec.itemsize * out.size, 0, ElementDecoder(codec, out)
        if first.bytes != total:
            raise SessionError(f"expected a payload of {total} bytes, got one of {first.bytes}")
        while received < total:
            chunk = _fitting(chunk, total - received)
            try:
                decoder.feed(chunk)
            except WireDtypeError as error:
                raise SessionError(f"a chunk of the payload does not fit: {error}") from error
            received += chunk.nbytes
            arrived(received)
            if received < total:
                chunk = self._next_chunk()


def _parsed(message: Message | None) -> Answer:
    if message is None:
        raise SessionError("the server ended the exchange without an answer")
    try:
        reply, chunk = frames.parsed(shard_pb2.ExchangeReply, message)
        _CHECK(reply)
    except frames.FrameError as error:
        raise SessionError(str(error)) from error
    except BoundError as error:
        raise out_of_bounds(error) from error
    return reply, chunk


def _fitting(chunk: memoryview | None, missing: int) -> memoryview:
    """Return a chunk of a payload that lacks `missing` bytes. Raises SessionError for one that does not fit."""
    if chunk is None or not 0 < chunk.nbytes <= missing:
        got = "none" if chunk is None else f"one of {chunk.nbytes}"
        raise SessionError(f"expected a chunk of 1 to {missing} bytes, got {got}")
    return chunk


def attached(message: bytes) -> shard_pb2.Attached:
    """Parse the frame that accepts a connection. Raises SocketError."""
    try:
        answer = shard_pb2.Attached.FromString(message)
        check(answer)
    except (DecodeError, BoundError) as error:
        raise SocketError(f"expected an Attached, got {len(message)} bytes: {error}") from error
    return answer


def _until_none(requests: "queue.SimpleQueue[bytes | None]") -> Iterator[bytes]:
    while (request := requests.get()) is not None:
        yield request
