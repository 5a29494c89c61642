"""One open stream to a server for all payloads: a request, then its answer, in turn."""

import queue
from collections.abc import Iterable, Iterator
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from pswire import frames
from pswire.dtypes import from_wire, itemsize
from pswire.v1 import shard_pb2
from psworker.errors import SessionError

Floats = NDArray[np.float32]


class Exchange:
    """Opens its stream at the first request, and again after it broke. One thread uses it.

    Every method raises grpc.RpcError when the stream breaks or the server
    refuses; the next request begins a new stream.
    """

    def __init__(self, channel: grpc.Channel) -> None:
        self._call: Any = channel.stream_stream("/pswire.v1.Shard/Exchange", None, None)
        self._requests: queue.SimpleQueue[bytes | None] | None = None
        self._replies: Any = None

    @property
    def open(self) -> bool:
        """A stream stands, and what was agreed on it."""
        return self._requests is not None

    def ask(self, requests: Iterable[bytes]) -> tuple[shard_pb2.ExchangeReply, frames.ChunkView | None]:
        """Send the messages of one request; the first message of its answer."""
        try:
            self._send(requests)
            return self._next()
        except BaseException:
            self.close()
            raise

    def payload(
        self, first: shard_pb2.ExchangeReply, chunk: frames.ChunkView | None, dtype: str, out: Floats
    ) -> None:
        """Receive a payload that begins with `chunk` into `out`, decoding it."""
        try:
            self._receive(first, chunk, dtype, out)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the stream; also from another thread."""
        requests, replies = self._requests, self._replies
        self._requests = self._replies = None
        if requests is not None:
            requests.put(None)
        if replies is not None:
            replies.cancel()

    def _send(self, requests: Iterable[bytes]) -> None:
        if self._requests is None:
            self._requests = queue.SimpleQueue()
            self._replies = self._call(_drained(self._requests))
        for request in requests:
            self._requests.put(request)

    def _next(self) -> tuple[shard_pb2.ExchangeReply, frames.ChunkView | None]:
        message = next(self._replies, None)
        if message is None:
            raise SessionError("the server ended the exchange without an answer")
        rest, chunk = frames.split_reply(message)
        return shard_pb2.ExchangeReply.FromString(bytes(rest)), chunk

    def _receive(
        self, first: shard_pb2.ExchangeReply, chunk: frames.ChunkView | None, dtype: str, out: Floats
    ) -> None:
        size, total, received = itemsize(dtype), out.size * itemsize(dtype), 0
        if first.bytes != total:
            raise SessionError(f"expected a payload of {total} bytes, got one of {first.bytes}")
        while received < total:
            if chunk is None or chunk.offset != received or received + chunk.data.nbytes > total:
                where = f"{chunk.data.nbytes} bytes at {chunk.offset}" if chunk else "none"
                raise SessionError(f"expected a chunk at offset {received} of {total} bytes, got {where}")
            end = received + chunk.data.nbytes
            from_wire(chunk.data, dtype, out[received // size : end // size])
            received = end
            if received < total:
                _, chunk = self._next()


def _drained(requests: "queue.SimpleQueue[bytes | None]") -> Iterator[bytes]:
    while (request := requests.get()) is not None:
        yield request
