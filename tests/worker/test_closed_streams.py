"""An exchange that another thread closes (the server has moved, or nobody needs its answer) is one that broke: whoever
reads from it tries again, or learns why nobody needs it."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pswire.addresses import Address
from pswire.transport import frames
from pswire.transport.codecs import FLOAT32
from pswire.v1 import shard_pb2
from psworker.control.backoff import Backoff, insist
from psworker.data.exchange import Exchange, GrpcStream
from tests.probes import unsent

VALUES = np.arange(12, dtype=np.float32)


class Version:
    """A stream on which a server sends `VALUES`, half of them in each message."""

    def __init__(self) -> None:
        data, half = memoryview(VALUES.tobytes()), VALUES.nbytes // 2
        begin = shard_pb2.ExchangeReply(bytes=VALUES.nbytes).SerializeToString()
        self._messages: Iterator[bytes] = iter(
            b"".join((head, *frames.chunk_field(offset, data[offset : offset + half], reply=True)))
            for offset, head in ((0, begin), (half, b""))
        )

    def send(self, message: Any) -> None:
        """Whatever is asked."""

    def receive(self) -> bytes | None:
        return next(self._messages, None)

    def close(self) -> None:
        """Nobody reads any more."""


def test_a_payload_whose_stream_is_closed_meanwhile_is_asked_for_again() -> None:
    exchange = Exchange(Version)
    out = np.zeros_like(VALUES)
    tries: list[frames.ChunkView | None] = []

    def pull() -> None:
        answer = exchange.ask([[b"pull"]])
        tries.append(answer[1])
        if len(tries) == 1:
            # Another thread is faster than the rest of the payload.
            exchange.close()
        exchange.payload(answer, FLOAT32, out)

    insist(pull, Backoff(0, Address("127.0.0.1", 7070), 3600.0, threading.Event()))
    assert len(tries) == 2
    np.testing.assert_array_equal(out, VALUES)


class Channel:
    """Of gRPC, as far as a stream asks."""

    def __init__(self, cancel: Callable[[], object]) -> None:
        self.cancel = cancel

    def stream_stream(self, *_: object) -> Any:
        return lambda requests: self


def test_a_stream_that_is_closed_is_cancelled_before_its_requests_end() -> None:
    """A server that saw only the end of them would end the call as if it had nothing to answer."""
    waiting: list[int] = []
    channel: Any = Channel(lambda: waiting.append(unsent(stream)))
    stream = GrpcStream(channel)
    stream.send([b"pull"])
    stream.close()
    assert waiting == [1]
