"""Payloads between messages and the shard's buffers: one copy each way, checked on the way in."""

import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, Protocol

import grpc
import numpy as np
from numpy.typing import NDArray

from psserver.receipts import Claim
from psserver.service.errors import Refused, invalid
from psserver.service.guard.calls import Caller, SendingPace
from psserver.service.net.loop import LARGE_PASS
from psserver.service.store.host import ShardHost
from psserver.service.store.reading import Read
from psserver.shard import Shard
from psserver.shard.staging import Slot
from pswire.transport import frames
from pswire.transport.codecs import BFLOAT16, FLOAT32, Codec, Elementwise, WireDtypeError
from pswire.transport.wire import codec_numbered
from pswire.v1 import shard_pb2

Floats = NDArray[np.float32]

# Codecs for which the shard has a pass that decodes and checks at once.
_FUSED: tuple[Codec, ...] = (FLOAT32, BFLOAT16)


class _Reception(Protocol):
    """Decodes a payload, chunk by chunk, into its slot."""

    def feed(self, data: memoryview) -> str | None:
        """Names the first number that is not finite; None if all are. Raises WireDtypeError as a Decoder."""
        ...


class _FusedReception:
    def __init__(self, shard: Shard, codec: Elementwise, slot: Slot) -> None:
        self._shard, self._codec, self._slot = shard, codec, slot
        self._done = 0

    def feed(self, data: memoryview) -> str | None:
        elements = self._codec.elements(data)
        start, self._done = self._done, self._done + elements.size
        return self._shard.checks.copy_in(self._slot, elements, start)


class _PlainReception:
    """Two passes: for any codec."""

    def __init__(self, shard: Shard, codec: Codec, slot: Slot) -> None:
        self._shard, self._slot = shard, slot
        self._decoder = codec.decoder(shard.layout, slot.values)

    def feed(self, data: memoryview) -> str | None:
        start, stop = self._decoder.feed(data)
        return self._shard.checks.measure(self._slot, start, stop)


def _reception(shard: Shard, codec: Codec, slot: Slot) -> _Reception:
    if isinstance(codec, Elementwise) and codec in _FUSED:
        return _FusedReception(shard, codec, slot)
    return _PlainReception(shard, codec, slot)


class Incoming:
    """A pushed payload on its way into its staging slot. Either `finish` or `give_up` must follow."""

    def __init__(self, host: ShardHost, shard: Shard, ticket: int, codec: Codec, slot: Slot) -> None:
        self._host, self._shard, self._ticket, self._slot = host, shard, ticket, slot
        self._codec = codec
        self._total = codec.size(shard.layout)
        self._received = 0
        self._reception = _reception(shard, codec, slot)

    @classmethod
    async def begin(cls, host: ShardHost, header: shard_pb2.PushHeader, caller: Caller) -> "Incoming":
        """Once there is room for it. Raises Refused."""
        shard = await host.claims.admit(claim_of(header), header.plan, header.after, caller)
        codec = known_codec(header.dtype)
        elements = shard.layout.elements
        total = codec.size(shard.layout)
        if header.bytes != total:
            raise invalid(
                f"payload of ticket {header.ticket}: expected {total} bytes ({elements} {codec.name} "
                f"elements of server {host.server}'s part), got {header.bytes}"
            )
        slot = await host.pushes.begin(shard, header.ticket, header.worker, caller)
        return cls(host, shard, header.ticket, codec, slot)

    @property
    def complete(self) -> bool:
        return self._received == self._total

    @property
    def left(self) -> int:
        """Bytes that have not come yet."""
        return self._total - self._received

    async def take(self, chunk: frames.ChunkView) -> None:
        """`feed`, on another thread where that pays."""
        await self._host.heavy.run(chunk.data.nbytes, lambda: self.feed(chunk))

    def feed(self, chunk: frames.ChunkView) -> None:
        """The next chunk: in order, what the codec encodes, finite numbers. Raises Refused.

        For one thread at a time, whichever: it touches nothing but the slot, which is this payload's own.
        """
        length = chunk.data.nbytes
        if chunk.offset != self._received:
            raise invalid(
                f"payload of ticket {self._ticket}: expected a chunk at offset {self._received}, "
                f"got {length} bytes at offset {chunk.offset}"
            )
        if self._received + length > self._total:
            raise invalid(
                f"payload of ticket {self._ticket}: expected {self._total} bytes, "
                f"got {self._received + length} or more"
            )
        try:
            bad = self._reception.feed(chunk.data)
        except WireDtypeError as error:
            raise invalid(f"payload of ticket {self._ticket}: {error} at offset {chunk.offset}") from error
        if bad is not None:
            caution = f"; {self._codec.caution}" if self._codec.caution else ""
            raise invalid(f"payload of ticket {self._ticket}: expected finite numbers, got {bad}{caution}")
        self._received += length

    def finish(self) -> Slot:
        """The payload is its ticket's. Raises Refused when chunks are missing or the ticket is closed."""
        if not self.complete:
            self.give_up()
            raise invalid(
                f"payload of ticket {self._ticket}: expected {self._total} bytes, "
                f"but the stream ended after {self._received}"
            )
        return self._host.finish_push(self._shard, self._slot)

    def give_up(self) -> None:
        self._host.pushes.give_up(self._shard, self._slot)


class Piece(NamedTuple):
    """`data` belongs at byte `offset` of a payload of `total` bytes."""

    offset: int
    data: memoryview
    total: int


class Outgoing:
    """A version on its way out. `end` must follow."""

    def __init__(
        self,
        host: ShardHost,
        shard: Shard,
        ticket: int,
        codec: Elementwise,
        read: Read,
        granted: bool,
        pace: SendingPace | None,
    ) -> None:
        """`pace`: None for chunks as large as they come."""
        self._host, self._shard, self._ticket, self._codec = host, shard, ticket, codec
        self._read, self._granted = read, granted
        self._pace = pace
        self._complete = False

    @classmethod
    async def begin(cls, host: ShardHost, request: shard_pb2.PullRequest, caller: Caller) -> "Outgoing":
        """`caller`: who reads it, and is cut when it holds too much. Raises Refused when it is gone."""
        shard = await host.claims.admit(claim_of(request), request.plan, request.after, caller)
        if request.slots:
            codec = known_weights(request.dtype)
            read = await host.reading.start_slots(shard, request.version, request.worker, caller)
            # As of a version that was granted: nobody takes it back.
            return cls(host, shard, 0, codec, read, True, _pace(host, caller))
        return await cls.of(
            host, shard, request.ticket, request.version, request.worker, request.dtype, caller
        )

    @classmethod
    async def of(
        cls, host: ShardHost, shard: Shard, ticket: int, version: int, worker: str, dtype: int, caller: Caller
    ) -> "Outgoing":
        """As `begin`, for one that the host serves."""
        codec = known_weights(dtype)
        read, granted = await host.reading.start(shard, ticket, version, worker, caller)
        return cls(host, shard, ticket, codec, read, granted, _pace(host, caller))

    @property
    def large(self) -> bool:
        return self._codec.itemsize * self._read.version.values.size > LARGE_PASS

    def check(self) -> None:
        """On the way. Raises Refused when the version was taken back."""
        # A read under way of a granted version goes on when that is taken back: over a slow link no lease would do.
        if not self._granted and not self._host.reading.still_readable(self._shard, self._read):
            number = self._read.version.number
            raise Refused(grpc.StatusCode.ABORTED, f"version {number} was taken back: its lease is over")

    def pieces(self) -> Iterator[Piece]:
        """At least one; `check` before each that is sent. For one thread at a time, whichever: it touches nothing that
        the loop owns."""
        values = self._read.version.values
        total, offset = self._codec.itemsize * values.size, 0
        if total == 0:
            yield Piece(0, memoryview(b""), 0)
        # Encoded piece by piece: readers never hold a copy of the model each.
        for encoded in _encoded(self._shard, values, self._codec):
            data = frames.as_bytes(encoded)
            while data.nbytes:
                piece = data.nbytes if self._pace is None else self._pace.piece
                part, data = data[:piece], data[piece:]
                began = time.monotonic()
                yield Piece(offset, part, total)
                if self._pace is not None:
                    self._pace.sent(time.monotonic() - began)
                offset += part.nbytes
        self._complete = True

    def end(self) -> None:
        """The version is needed no longer; that of a ticket neither, if all of it was taken."""
        self._host.reading.end(
            self._shard, self._ticket, self._read, granted=self._granted, complete=self._complete
        )


def _pace(host: ShardHost, caller: Caller) -> SendingPace | None:
    if caller.paced and caller.pace is None:
        caller.pace = SendingPace(host.options.worker_timeout)
    if caller.pace is not None:
        caller.pace.begin()
    return caller.pace


def _encoded(shard: Shard, values: Floats, codec: Elementwise) -> Iterator[NDArray[Any]]:
    """The payload in chunks; by the shard's own pass where that is the faster."""
    if codec is not BFLOAT16:
        return codec.pieces(values, frames.CHUNK_BYTES)
    step = frames.CHUNK_BYTES // codec.itemsize
    cut = (values[start : start + step] for start in range(0, values.size, step))
    return (shard.narrow(part).astype(BFLOAT16.raw, copy=False) for part in cut)


def claim_of(request: shard_pb2.PushHeader | shard_pb2.PullRequest | shard_pb2.Attach) -> Claim:
    """Who says that the request is theirs, and how they prove it."""
    return Claim(request.job, request.worker, request.incarnation, request.membership_token)


def known_codec(number: int) -> Codec:
    """Raises Refused for a number that no codec has."""
    try:
        return codec_numbered(number)
    except WireDtypeError as error:
        raise invalid(str(error)) from error


def known_weights(number: int) -> Elementwise:
    """As `known_codec`, of one that weights travel by."""
    codec = known_codec(number)
    if not isinstance(codec, Elementwise):
        raise invalid(f"{codec.name} is for gradients: expected weights as float32, bfloat16 or float16")
    return codec


# Of a buffer, before anything has come: memory grows with what has come, not with what was announced.
FIRST: Final = 2**18
# Of what is received at once where no large frame is under way.
SMALL: Final = 2**17
# Buffers that are kept while no large frame is under way.
KEPT: Final = 4


class Buffers:
    """The loop's thread owns it."""

    def __init__(self) -> None:
        # All small frames are received here; nothing is kept in it.
        self.small = bytearray(SMALL)
        self.view = memoryview(self.small)
        self._free: list[bytearray] = []
        # Bytes of those that are taken.
        self.taken = 0

    def take(self, length: int) -> bytearray:
        """For a frame of so many bytes; it may be smaller (see `at_least`)."""
        buffer = self._free.pop() if self._free else bytearray(min(length, FIRST))
        self.taken += len(buffer)
        return buffer

    def at_least(self, buffer: bytearray, filled: int, more: int, length: int) -> bytearray:
        """One in which `more` bytes fit behind those that are there; `length`: of the whole frame."""
        if len(buffer) >= filled + more:
            return buffer
        # A view of it may be in use: it is replaced, never resized.
        larger = bytearray(min(length, max(2 * len(buffer), filled + more)))
        larger[:filled] = memoryview(buffer)[:filled]
        self.taken += len(larger) - len(buffer)
        return larger

    def give(self, buffer: bytearray) -> None:
        """The largest are kept."""
        self.taken -= len(buffer)
        self._free.append(buffer)
        if len(self._free) > KEPT:
            sizes = [len(each) for each in self._free]
            del self._free[sizes.index(min(sizes))]
