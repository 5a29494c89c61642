"""Push and Pull: payloads between the network and the shard's buffers, chunk by chunk."""

from collections.abc import Iterator

import grpc
import numpy as np
from numpy.typing import NDArray

from psserver.service.rpc import Refused, invalid
from psserver.service.shard_host import ShardHost
from psserver.shard import Shard
from pswire import frames
from pswire.dtypes import WireDtypeError, from_wire, itemsize, to_wire, wire_name
from pswire.v1 import shard_pb2


class ShardRpc:
    def __init__(self, host: ShardHost) -> None:
        self._host = host

    def push(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> shard_pb2.PushReply:
        """Stage a payload: each chunk is copied once, from its message into the slot, and checked."""
        header = self._header(messages)
        shard = self._host.serving(header.job, header.plan, header.after)
        dtype = _dtype(header.dtype)
        expected = shard.layout.elements * itemsize(dtype)
        if header.bytes != expected:
            raise invalid(
                f"payload of ticket {header.ticket}: expected {expected} bytes ({shard.layout.elements} {dtype} "
                f"elements of server {self._host.server}'s part), got {header.bytes}"
            )
        slot = self._host.begin_push(shard, header.ticket, context.is_active)
        complete = False
        try:
            self._receive(messages, shard, slot.values, dtype, header.ticket)
            complete = True
        finally:
            if not complete:
                self._host.give_up_push(shard, slot)
        return shard_pb2.PushReply(receipt=self._host.finish_push(shard, slot))

    def _header(self, messages: Iterator[bytes]) -> shard_pb2.PushHeader:
        first = next(messages, None)
        if first is None:
            raise invalid("expected a PushRequest with a header first, got an empty stream")
        part = _parse(first)
        if isinstance(part, frames.ChunkView):
            raise invalid("expected a PushRequest with a header first, got a chunk")
        return part

    def _receive(
        self,
        messages: Iterator[bytes],
        shard: Shard,
        values: NDArray[np.float32],
        dtype: str,
        ticket: int,
    ) -> None:
        size = itemsize(dtype)
        received, total = 0, values.size * size
        for message in messages:
            chunk = _parse(message)
            if not isinstance(chunk, frames.ChunkView):
                raise invalid(
                    f"payload of ticket {ticket}: expected chunks after the header, got another header"
                )
            length = chunk.data.nbytes
            if chunk.offset != received or length % size:
                raise invalid(
                    f"payload of ticket {ticket}: expected a chunk of whole {dtype} elements at offset {received}, "
                    f"got {length} bytes at offset {chunk.offset}"
                )
            if received + length > total:
                raise invalid(
                    f"payload of ticket {ticket}: expected {total} bytes, got {received + length} or more"
                )
            start, stop = received // size, (received + length) // size
            from_wire(chunk.data, dtype, values[start:stop])
            bad = shard.nonfinite(values[start:stop], start)
            if bad is not None:
                raise invalid(f"payload of ticket {ticket}: expected finite numbers, got {bad}")
            received += length
        if received != total:
            raise invalid(
                f"payload of ticket {ticket}: expected {total} bytes, but the stream ended after {received}"
            )

    def pull(self, request: shard_pb2.PullRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
        """Stream a version: each chunk is copied once, from the arena into its message."""
        shard = self._host.serving(request.job, request.plan, request.after)
        dtype = _dtype(request.dtype)
        version = self._host.start_read(shard, request.ticket, request.version)
        complete = False
        try:
            payload = to_wire(version.values, dtype)
            total = payload.nbytes
            if total == 0:
                yield frames.pull_chunk(0, b"", 0)
            for offset, data in frames.chunks(payload):
                if not self._host.still_readable(shard, version):
                    raise Refused(
                        grpc.StatusCode.ABORTED, f"version {version.number} was taken back: its lease is over"
                    )
                yield frames.pull_chunk(offset, data, total if offset == 0 else None)
            complete = True
        finally:
            self._host.end_read(shard, request.ticket, version, complete=complete)


def _parse(message: bytes) -> shard_pb2.PushHeader | frames.ChunkView:
    try:
        return frames.parse_push(message)
    except frames.FrameError as error:
        raise invalid(str(error)) from error


def _dtype(number: int) -> str:
    try:
        return wire_name(number)
    except WireDtypeError as error:
        raise invalid(str(error)) from error
