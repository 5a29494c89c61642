"""Pushed gradients: from messages, or from a slot of shared memory, into staging. One pass copies and checks them.

The way of a push through the server: `connection` (bytes to frames), `exchange` (frames to requests), this module
(payloads to staging), `job.decider` (the commit), `store.executor` (the update), `pulls` (the answer).
"""

from functools import partial
from typing import Protocol

import grpc
import numpy as np
from google.protobuf.message import DecodeError

from psserver.receipts import Claim
from psserver.service.errors import Refused, invalid, precondition
from psserver.service.guard.calls import Caller
from psserver.service.net.loop import LARGE_PASS
from psserver.service.net.registration import Call, bounded
from psserver.service.net.rows import NextChunk, RowsBehind
from psserver.service.net.streams import Stream
from psserver.service.store.host import ShardHost
from psserver.service.store.shared_memory import Attachment
from psserver.shard import Shard
from psserver.shard.staging import Slot
from pswire.bounds import HEADER_BYTES
from pswire.model.groups import Part
from pswire.model.rows import WantedRows
from pswire.patience import CHUNK_SECONDS
from pswire.transport import frames
from pswire.transport.codecs import BFLOAT16, FLOAT32, Codec, Elementwise, WireDtypeError
from pswire.transport.frames import Message
from pswire.transport.wire import codec_numbered
from pswire.v1 import shard_pb2

# Codecs that the shard decodes and checks in a single pass.
_FUSED: tuple[Codec, ...] = (FLOAT32, BFLOAT16)


# The first byte of a PushRequest with a header.
_HEADER = b"\n"


class _Decoder(Protocol):
    """Decodes a payload into its slot, chunk by chunk."""

    def feed(self, data: memoryview) -> str | None:
        """Return the first number that is not finite, as text, or None. Raises WireDtypeError."""
        ...


class _FusedDecoder:
    """Decodes and checks in one pass."""

    def __init__(self, shard: Shard, codec: Elementwise, slot: Slot) -> None:
        self._shard, self._codec, self._slot = shard, codec, slot
        self._done = 0

    def feed(self, data: memoryview) -> str | None:
        elements = self._codec.elements(data)
        start, self._done = self._done, self._done + elements.size
        return self._shard.checks.copy_in(self._slot, elements, start)


class _PlainDecoder:
    """Decodes in one pass and checks in another; works for any codec."""

    def __init__(self, shard: Shard, codec: Codec, slot: Slot) -> None:
        self._shard, self._slot = shard, slot
        self._decoder = codec.decoder(shard.layout, slot.values)

    def feed(self, data: memoryview) -> str | None:
        start, stop = self._decoder.feed(data)
        return self._shard.checks.measure(self._slot, start, stop)


class _PartDecoder:
    """Decodes one group of rows, which lies in several places. The rest of the payload is zero."""

    def __init__(self, shard: Shard, codec: Codec, slot: Slot, part: Part) -> None:
        self._shard, self._slot, self._part = shard, slot, part
        self._values = np.empty(part.layout.elements, np.float32)
        self._decoder = codec.decoder(part.layout, self._values)
        if not self._values.size:
            # No chunk will come.
            slot.values[...] = 0

    def feed(self, data: memoryview) -> str | None:
        _, stop = self._decoder.feed(data)
        if stop < self._values.size:
            return None
        self._slot.values[...] = 0
        self._part.put(self._slot.values, self._values)
        return self._shard.checks.measure(self._slot, 0, self._slot.values.size)


def _decoder(shard: Shard, codec: Codec, slot: Slot, part: Part) -> _Decoder:
    if part.rows is not None:
        return _PartDecoder(shard, codec, slot, part)
    if isinstance(codec, Elementwise) and codec in _FUSED:
        return _FusedDecoder(shard, codec, slot)
    return _PlainDecoder(shard, codec, slot)


class Incoming:
    """A payload on its way into its staging slot. End it with `finish` or `give_up`.

    `rows`: what follows it. `ahead`: once it has arrived, the rows that the worker wants with its next grant.
    """

    def __init__(
        self,
        host: ShardHost,
        shard: Shard,
        ticket: int,
        codec: Codec,
        total: int,
        slot: Slot,
        part: Part,
        rows: RowsBehind | None,
    ) -> None:
        """`total`: bytes of the payload, which is `part` of the server's."""
        self.rows, self.ahead = rows, WantedRows()
        self._host, self._shard, self._ticket, self._slot = host, shard, ticket, slot
        self._codec = codec
        self._total = total
        self._received = 0
        self._decoder = _decoder(shard, codec, slot, part)
        # A chunk that is here and not decoded yet. It is decoded together with the chunks that follow it, so that a
        # large payload is handed to another thread once.
        self._pending: frames.ChunkView | None = None

    @classmethod
    async def begin(cls, host: ShardHost, header: shard_pb2.PushHeader, caller: Caller) -> "Incoming":
        """Admit the worker, wait for room, and reserve a slot. Raises Refused."""
        shard = await host.claims.admit(claim_of(header), header.plan, header.after, caller)
        codec = known_codec(header.dtype)
        if not codec.prepared:
            await host.heavy.on_pool(codec.prepare)
        refusal = shard.refusal(header.ticket, header.worker) if shard.groups.count > 1 else None
        if refusal is not None:
            # Only an open ticket's payload has a known size.
            raise Refused(grpc.StatusCode.ABORTED, refusal)
        part = shard.part(header.ticket)
        total = codec.size(part.layout)
        if header.bytes != total:
            raise invalid(
                f"payload of ticket {header.ticket}: expected {total} bytes ({part.layout.elements} {codec.name} "
                f"elements of server {host.server}'s part), got {header.bytes}"
            )
        rows = RowsBehind.of_push(host, shard, header, codec, total)
        slot = await host.pushes.begin(shard, header.ticket, header.worker, caller)
        return cls(host, shard, header.ticket, codec, total, slot, part, rows)

    @property
    def complete(self) -> bool:
        """Whether all of the payload has arrived, but for rows."""
        return self._received == self._total

    @property
    def _missing(self) -> int:
        """Bytes that have not arrived."""
        pending = 0 if self._pending is None else self._pending.data.nbytes
        return self._total - self._received - pending

    async def receive(self, stream: Stream, first: frames.ChunkView | None) -> Slot:
        """Take `first` and all further chunks from `stream`; return the finished slot. Raises Refused."""
        self._pending, arrived = first, False
        seconds = self._host.options.worker_timeout + CHUNK_SECONDS
        try:
            while self._pending is not None or not self.complete:
                if self._missing >= LARGE_PASS:
                    with stream.caller.within(seconds):
                        await stream.receive_many(self._decode_beside)
                chunk, self._pending = self._pending, None
                if chunk is not None:
                    await self.take(chunk)
                if not self.complete:
                    with stream.caller.within(seconds):
                        self._pending = _chunk(await stream.receive())
            if self.rows is not None:
                await self.receive_rows(stream.caller, chunks_of(stream))
            arrived = True
        finally:
            if not arrived:
                self.give_up()
        return self.finish()

    async def receive_rows(self, caller: Caller, following: NextChunk) -> None:
        """Receive what follows the complete payload. Raises Refused."""
        assert self.rows is not None
        rows, self.ahead = await self.rows.receive(caller, None, following)
        self.rows.stage(rows, self._slot)

    def _decode_beside(self, received: Message) -> bool:
        """Decode one message on another thread; return True if more are wanted. Raises Refused."""
        chunk, self._pending = self._pending, None
        if chunk is not None:
            self._decode(chunk)
        self._decode(_chunk(received))
        return not self.complete

    async def take(self, chunk: frames.ChunkView) -> None:
        """Decode a chunk, on another thread if it is large. Raises Refused."""
        await self._host.heavy.run(chunk.data.nbytes, lambda: self._decode(chunk))

    def _decode(self, chunk: frames.ChunkView) -> None:
        """Decode the next chunk in order. Raises Refused, also for numbers that are not finite.

        Runs on one thread at a time and touches only the slot, which belongs to this payload.
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
            bad = self._decoder.feed(chunk.data)
        except WireDtypeError as error:
            raise invalid(f"payload of ticket {self._ticket}: {error} at offset {chunk.offset}") from error
        if bad is not None:
            caution = f"; {self._codec.caution}" if self._codec.caution else ""
            raise invalid(f"payload of ticket {self._ticket}: expected finite numbers, got {bad}{caution}")
        self._received += length

    def finish(self) -> Slot:
        """Give the complete payload to its ticket. Raises Refused if chunks are missing or the ticket is closed."""
        if not self.complete:
            self.give_up()
            raise invalid(
                f"payload of ticket {self._ticket}: expected {self._total} bytes, "
                f"but the stream ended after {self._received}"
            )
        self._host.pushes.finish(self._shard, self._slot)
        return self._slot

    def give_up(self) -> None:
        """Free the slot."""
        self._host.pushes.give_up(self._shard, self._slot)


async def stage_slot(
    host: ShardHost,
    header: shard_pb2.PushHeader,
    attachment: Attachment,
    number: int,
    stream: Stream,
    chunk: frames.ChunkView | None,
) -> tuple[Slot, WantedRows]:
    """Copy and check the payload that the worker wrote into shared slot `number`, and receive the rows behind it.

    Returns the slot, and the rows that the worker wants with its next grant. Raises Refused.

    The copy matters: the worker can write into its slot at any time, but what is checked must be what is applied.
    """
    caller, ahead = stream.caller, WantedRows()
    shard = await host.claims.admit(claim_of(header), header.plan, header.after, caller)
    if not attachment.holds(number):
        raise invalid(f"payload of ticket {header.ticket}: expected a lent slot, got number {number}")
    if not attachment.fits(shard.layout.elements):
        raise precondition("the job's model has changed since this memory was lent; join again")
    behind = RowsBehind.of_push(host, shard, header, known_codec(header.dtype), 0)
    slot = await host.pushes.begin(shard, header.ticket, header.worker, caller)
    finite = False
    try:
        filled = attachment.values(number)
        bad = await host.heavy.run(filled.nbytes, partial(shard.checks.copy_in, slot, filled, 0))
        if bad is not None:
            raise invalid(f"payload of ticket {header.ticket}: expected finite numbers, got {bad}")
        if behind is not None:
            rows, ahead = await behind.receive(caller, chunk, chunks_of(stream))
            behind.stage(rows, slot)
        finite = True
    finally:
        if not finite:
            host.pushes.give_up(shard, slot)
    host.pushes.finish(shard, slot)
    return slot, ahead


async def pass_over(
    host: ShardHost, request: shard_pb2.ExchangeRequest, chunk: frames.ChunkView | None, stream: Stream
) -> None:
    """Receive what follows a push of a settled ticket, and forget it. The member was admitted. Raises Refused."""
    shard, header, seconds = host.state.shard, request.push, host.options.worker_timeout + CHUNK_SECONDS
    assert shard is not None
    codec, left = known_codec(header.dtype), 0 if request.slot else header.bytes
    behind = RowsBehind.of_push(host, shard, header, codec, left)
    left += 0 if behind is None else behind.format.nbytes
    while left > 0:
        if chunk is None:
            with stream.caller.within(seconds):
                chunk = _chunk(await stream.receive())
        left, chunk = left - max(1, chunk.data.nbytes), None


def chunks_of(stream: Stream) -> NextChunk:
    """Return what waits for the next chunk of a stream's request."""

    async def following() -> frames.ChunkView:
        return _chunk(await stream.receive())

    return following


class PushRpc:
    """Push: one payload per call. Any generated client can speak it."""

    def __init__(self, host: ShardHost) -> None:
        self._host = host

    async def push(self, call: Call) -> None:
        """Stage the payload of one call and reply with its receipt. Raises Refused."""
        incoming = await Incoming.begin(self._host, await _header(call), call.caller)
        finished = False
        try:
            while not incoming.complete and (message := await self._next(call)) is not None:
                await incoming.take(_further(message))
            if incoming.rows is not None:
                await incoming.receive_rows(call.caller, partial(self._following, call))
            if (more := await self._next(call)) is not None:
                # Says how long the payload is.
                await incoming.take(_further(more))
            finished = True
        finally:
            if not finished:
                incoming.give_up()
        await call.reply(shard_pb2.PushReply(receipt=await self._host.receipt(incoming.finish())))

    async def _following(self, call: Call) -> frames.ChunkView:
        message = await call.receive()
        if message is None:
            raise invalid("expected rows behind the payload, but the stream ended")
        return _further(message)

    async def _next(self, call: Call) -> bytes | None:
        """Receive in time: a peer that stops in the middle of a payload holds memory of this server."""
        with call.caller.within(self._host.options.worker_timeout + CHUNK_SECONDS):
            return await call.receive()


async def _header(call: Call) -> shard_pb2.PushHeader:
    first = await call.receive()
    if first is None:
        raise invalid("expected a PushRequest with a header first, got an empty stream")
    part = _parse_push(first)
    if isinstance(part, frames.ChunkView):
        raise invalid("expected a PushRequest with a header first, got a chunk")
    header: shard_pb2.PushHeader = bounded(part)
    return header


def _parse_push(message: bytes) -> shard_pb2.PushHeader | frames.ChunkView:
    if len(message) > HEADER_BYTES and message[:1] == _HEADER:
        raise invalid(f"expected a header of at most {HEADER_BYTES} bytes, got one of {len(message)}")
    try:
        return frames.parse_push(message)
    except frames.FrameError as error:
        raise invalid(str(error)) from error


def _further(message: bytes) -> frames.ChunkView:
    part = _parse_push(message)
    if not isinstance(part, frames.ChunkView):
        raise invalid("expected chunks after the header, got another header")
    return part


def parse_request(received: Message) -> tuple[shard_pb2.ExchangeRequest, frames.ChunkView | None]:
    """Return the request, and its chunk as a view of `received`. Raises Refused."""
    chunk = None
    try:
        if len(received) > frames.SMALL:
            rest, chunk = frames.split_chunk(received)
            if len(rest) > HEADER_BYTES:
                raise invalid(
                    f"expected at most {HEADER_BYTES} bytes beside a chunk at the end, got {len(rest)}"
                )
            request = shard_pb2.ExchangeRequest.FromString(bytes(rest))
        else:
            request = shard_pb2.ExchangeRequest.FromString(bytes(received))
    except (frames.FrameError, DecodeError) as error:
        text = f"expected a pswire.v1.ExchangeRequest, got {len(received)} bytes that do not parse"
        raise invalid(text) from error
    bounded(request)
    if chunk is None and request.HasField("chunk"):
        chunk = frames.ChunkView(request.chunk.offset, memoryview(request.chunk.data))
    return request, chunk


def _chunk(received: Message | None) -> frames.ChunkView:
    if received is None:
        raise invalid("expected more chunks of the payload, but the stream ended")
    request, chunk = parse_request(received)
    if chunk is None or request.HasField("push") or request.HasField("pull") or request.HasField("attach"):
        raise invalid("expected a chunk of the payload that was begun, got another request")
    return chunk


def claim_of(request: shard_pb2.PushHeader | shard_pb2.PullRequest | shard_pb2.Attach) -> Claim:
    """Return the membership that the request claims, with its proof."""
    return Claim(request.job, request.worker, request.incarnation, request.membership_token)


def known_codec(number: int) -> Codec:
    """Return the codec of that number. Raises Refused if there is none."""
    try:
        return codec_numbered(number)
    except WireDtypeError as error:
        raise invalid(str(error)) from error
