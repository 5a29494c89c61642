"""One open stream to a server for all payloads: a request, then its answer, in turn."""

from collections.abc import Callable, Iterable
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from pswire.bounds import BoundError, checker
from pswire.transport import frames
from pswire.transport.codecs import ElementDecoder, Elementwise, WireDtypeError
from pswire.transport.failures import CallEnded
from pswire.transport.framed_socket import Parts
from pswire.transport.frames import Message
from pswire.v1 import shard_pb2
from psworker.control.backoff import beyond
from psworker.data.streams import Stream
from psworker.errors import SessionError

# Looked up once: they are on the path of every step.
_REPLY: Callable[[bytes], shard_pb2.ExchangeReply] = shard_pb2.ExchangeReply.FromString
_CHECK = checker(shard_pb2.ExchangeReply.DESCRIPTOR)


class Exchange:
    """Opens its stream at the first request, and again after it broke.

    The thread that holds the server's `turn` uses it; any thread may `close` it.

    Every method raises grpc.RpcError when the stream breaks or the server
    refuses; the next request begins a new stream.
    """

    def __init__(self, connect: Callable[[], Stream], stream: Stream | None = None) -> None:
        self._connect = connect
        self._stream = stream

    @property
    def open(self) -> bool:
        """A stream stands, and what was agreed on it."""
        return self._stream is not None

    def ask(self, requests: Iterable[Parts]) -> tuple[shard_pb2.ExchangeReply, frames.ChunkView | None]:
        """Send the messages of one request; the first message of its answer."""
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
        first: shard_pb2.ExchangeReply,
        chunk: frames.ChunkView | None,
        codec: Elementwise,
        out: NDArray[Any],
    ) -> None:
        """Receive a payload that begins with `chunk` into `out`: float32, or the codec's `array_dtype`."""
        try:
            self._receive(first, chunk, codec, out)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the stream; also from another thread."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def _receive(
        self,
        first: shard_pb2.ExchangeReply,
        chunk: frames.ChunkView | None,
        codec: Elementwise,
        out: NDArray[Any],
    ) -> None:
        total, received, decoder = codec.itemsize * out.size, 0, ElementDecoder(codec, out)
        if first.bytes != total:
            raise SessionError(f"expected a payload of {total} bytes, got one of {first.bytes}")
        while received < total:
            if chunk is None or chunk.offset != received or received + chunk.data.nbytes > total:
                where = f"{chunk.data.nbytes} bytes at {chunk.offset}" if chunk else "none"
                raise SessionError(f"expected a chunk at offset {received} of {total} bytes, got {where}")
            self._decode(decoder, chunk.data)
            received += chunk.data.nbytes
            if received < total:
                stream = self._stream
                if stream is None:
                    # By another thread. The server has refused nothing: this is a connection that broke.
                    raise CallEnded(grpc.StatusCode.CANCELLED, "the exchange was closed here")
                _, chunk = _parsed(stream.receive())

    def _decode(self, decoder: ElementDecoder, data: memoryview) -> None:
        try:
            decoder.feed(data)
        except WireDtypeError as error:
            raise SessionError(f"a chunk of the payload does not fit: {error}") from error


def _parsed(message: Message | None) -> tuple[shard_pb2.ExchangeReply, frames.ChunkView | None]:
    """One message of an answer, and the chunk that it brings."""
    if message is None:
        raise SessionError("the server ended the exchange without an answer")
    chunk: frames.ChunkView | None = None
    try:
        if len(message) > frames.SMALL:
            rest, chunk = frames.split_reply(message)
            reply = _REPLY(bytes(rest))
        else:
            reply = _REPLY(bytes(message))
    except (frames.FrameError, DecodeError) as error:
        raise SessionError(
            f"expected an ExchangeReply, got {len(message)} bytes that do not parse"
        ) from error
    try:
        _CHECK(reply)
    except BoundError as error:
        raise beyond(error) from error
    if chunk is None and reply.HasField("chunk"):
        chunk = frames.ChunkView(reply.chunk.offset, memoryview(reply.chunk.data))
    return reply, chunk
