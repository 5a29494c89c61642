"""Payloads between messages and the shard's buffers: one copy each way, checked on the way in."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from psserver.service.rpc.registration import Refused, invalid
from psserver.service.shard_host import ShardHost
from psserver.shard import Shard
from pswire.transport import frames
from pswire.transport.dtypes import WireDtypeError, from_wire, itemsize, to_wire, wire_name
from pswire.v1 import shard_pb2

Floats = NDArray[np.float32]

# What a chunk's bytes are in wire dtypes that are copied and checked in one pass; bfloat16 as its bits.
_DIRECT = {"float32": "<f4", "bfloat16": "<u2"}


class Intake:
    """A pushed payload on its way into its staging slot. Either `finish` or `give_up` must follow."""

    def __init__(self, host: ShardHost, header: shard_pb2.PushHeader, alive: Callable[[], bool]) -> None:
        self._host = host
        self._ticket = header.ticket
        self._shard = host.serving(header.job, header.plan, header.after)
        self._dtype = known_dtype(header.dtype)
        self._size = itemsize(self._dtype)
        elements = self._shard.layout.elements
        self._total = elements * self._size
        if header.bytes != self._total:
            raise invalid(
                f"payload of ticket {header.ticket}: expected {self._total} bytes ({elements} {self._dtype} "
                f"elements of server {host.server}'s part), got {header.bytes}"
            )
        self._received = 0
        self._slot = host.begin_push(self._shard, header.ticket, header.worker, alive)

    @property
    def complete(self) -> bool:
        return self._received == self._total

    def take(self, chunk: frames.ChunkView) -> None:
        """The next chunk: in order, whole elements, finite numbers. Raises Refused."""
        length, size = chunk.data.nbytes, self._size
        if chunk.offset != self._received or length % size:
            raise invalid(
                f"payload of ticket {self._ticket}: expected a chunk of whole {self._dtype} elements at offset "
                f"{self._received}, got {length} bytes at offset {chunk.offset}"
            )
        if self._received + length > self._total:
            raise invalid(
                f"payload of ticket {self._ticket}: expected {self._total} bytes, "
                f"got {self._received + length} or more"
            )
        start, stop = self._received // size, (self._received + length) // size
        bad = self._copy(chunk.data, self._slot.values[start:stop], start)
        if bad is not None:
            beyond = "; beyond 65504 they become infinite as float16" if self._dtype == "float16" else ""
            raise invalid(f"payload of ticket {self._ticket}: expected finite numbers, got {bad}{beyond}")
        self._received += length

    def _copy(self, data: memoryview, values: Floats, start: int) -> str | None:
        """Decode into the slot; names the first number that is not finite. One pass where a kernel does both."""
        if self._dtype in _DIRECT:
            return self._shard.copy_in(values, np.frombuffer(data, _DIRECT[self._dtype]), start)
        from_wire(data, self._dtype, values)
        return self._shard.nonfinite(values, start)

    def finish(self) -> bytes:
        """The receipt. Raises Refused when chunks are missing or the ticket is closed."""
        if not self.complete:
            self.give_up()
            raise invalid(
                f"payload of ticket {self._ticket}: expected {self._total} bytes, "
                f"but the stream ended after {self._received}"
            )
        return self._host.finish_push(self._shard, self._slot)

    def give_up(self) -> None:
        self._host.give_up_push(self._shard, self._slot)


@dataclass(frozen=True, slots=True)
class Piece:
    """`data` belongs at byte `offset` of a payload of `total` bytes."""

    offset: int
    data: memoryview
    total: int


def outgoing(host: ShardHost, request: shard_pb2.PullRequest) -> Iterator[Piece]:
    """A version, piece by piece; at least one. Raises Refused when it is gone, also on the way."""
    shard = host.serving(request.job, request.plan, request.after)
    dtype = known_dtype(request.dtype)
    version = host.start_read(shard, request.ticket, request.version)
    complete = False
    try:
        size = itemsize(dtype)
        step, total = frames.CHUNK_BYTES // size, version.values.size * size
        if total == 0:
            yield Piece(0, memoryview(b""), 0)
        # Narrowed piece by piece: readers never hold a copy of the model each.
        for start in range(0, version.values.size, step):
            if not host.still_readable(shard, version):
                raise Refused(
                    grpc.StatusCode.ABORTED, f"version {version.number} was taken back: its lease is over"
                )
            piece = _encoded(shard, version.values[start : start + step], dtype)
            yield Piece(start * size, frames.as_bytes(piece), total)
        complete = True
    finally:
        host.end_read(shard, request.ticket, version, complete=complete)


def _encoded(shard: Shard, values: Floats, dtype: str) -> NDArray[Any]:
    """The array whose memory is the payload; by a kernel of ours where that is the faster."""
    if dtype == "bfloat16":
        return shard.narrow(values).astype("<u2", copy=False)
    return to_wire(values, dtype)


def known_dtype(number: int) -> str:
    try:
        return wire_name(number)
    except WireDtypeError as error:
        raise invalid(str(error)) from error
