"""Pushed gradients: from messages, or from a slot of shared memory, into staging. One pass copies and checks them.

The way of a push through the server: `connection` (bytes to frames), `exchange` (frames to requests), this module
(payloads to staging), `job.decider` (the commit), `store.executor` (the update), `pulls` (the answer).
"""

from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from psserver.receipts import Claim
from psserver.service.errors import aborted, invalid, precondition
from psserver.service.guard.calls import CallPeer
from psserver.service.net.registration import Call
from psserver.service.net.rows import RowsBehind
from psserver.service.net.streams import RequestChunks, ServerStream, request_in
from psserver.service.pools import LARGE_PASS
from psserver.service.store.host import ShardHost
from psserver.service.store.shared_memory import Attachment
from psserver.shard import Shard
from psserver.shard.staging import Slot
from pswire.model.groups import GroupPart
from pswire.model.rows import WantedRows
from pswire.patience import CHUNK_SECONDS
from pswire.transport.codecs import BFLOAT16, FLOAT32, Codec, Elementwise, WireDtypeError
from pswire.transport.wire import codec_numbered
from pswire.v1 import shard_pb2

# Codecs that the shard decodes and checks in a single pass.
_FUSED: tuple[Codec, ...] = (FLOAT32, BFLOAT16)
Floats = NDArray[np.float32]


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

    def __init__(self, shard: Shard, codec: Codec, slot: Slot, part: GroupPart) -> None:
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


def _decoder(shard: Shard, codec: Codec, slot: Slot, part: GroupPart) -> _Decoder:
    if part.rows is not None:
        return _PartDecoder(shard, codec, slot, part)
    if isinstance(codec, Elementwise) and codec in _FUSED:
        return _FusedDecoder(shard, codec, slot)
    return _PlainDecoder(shard, codec, slot)


class _Incoming:
    """A payload on its way into its staging slot."""

    def __init__(self, host: ShardHost, shard: Shard, codec: Codec, part: GroupPart, slot: Slot) -> None:
        """`part`: of the server's part of the model, which the payload is of."""
        self._host, self._shard, self._codec, self._part, self._slot = host, shard, codec, part, slot
        self._total, self._received = codec.size(part.layout), 0
        # A chunk that is decoded together with the chunks that follow it, so that a large payload is handed to another
        # thread once.
        self._pending: memoryview | None = None

    async def receive(self, chunks: RequestChunks) -> None:
        """Decode all of the payload. Raises Refused."""
        self._decoder = _decoder(self._shard, self._codec, self._slot, self._part)
        while self._received < self._total:
            chunk: memoryview | None = await chunks.next()
            if chunk is not None and self._total - self._received - chunk.nbytes >= LARGE_PASS:
                self._pending = chunk
                await chunks.many(self._decode_beside)
                chunk, self._pending = self._pending, None
            if chunk is not None:
                await self._host.runtime.passes.run(chunk.nbytes, partial(self._decode, chunk))

    async def copy(self, shared: Floats) -> None:
        """Copy and check a payload that its worker wrote into shared memory. Raises Refused.

        The copy matters: the worker can write there at any time, but what is checked must be what is applied.
        """
        found = await self._host.runtime.passes.run(
            shared.nbytes, partial(self._shard.checks.copy_in, self._slot, shared, 0)
        )
        self._check(found)

    def _decode_beside(self, chunk: memoryview) -> bool:
        """Decode one chunk on another thread; return True if more are wanted. Raises Refused."""
        pending, self._pending = self._pending, None
        if pending is not None:
            self._decode(pending)
        self._decode(chunk)
        return self._received < self._total

    def _decode(self, chunk: memoryview) -> None:
        """Decode the next chunk. Raises Refused, also for numbers that are not finite.

        Runs on one thread at a time and touches only the slot, which belongs to this payload.
        """
        if self._received + chunk.nbytes > self._total:
            raise invalid(
                f"payload of ticket {self._slot.ticket}: expected {self._total} bytes, "
                f"got {self._received + chunk.nbytes} or more"
            )
        try:
            self._check(self._decoder.feed(chunk))
        except WireDtypeError as error:
            at = f"{error} at offset {self._received}"
            raise invalid(f"payload of ticket {self._slot.ticket}: {at}") from error
        self._received += chunk.nbytes

    def _check(self, bad: str | None) -> None:
        if bad is not None:
            caution = f"; {self._codec.caution}" if self._codec.caution else ""
            raise invalid(
                f"payload of ticket {self._slot.ticket}: expected finite numbers, got {bad}{caution}"
            )


async def staged(
    host: ShardHost,
    header: shard_pb2.PushHeader,
    chunks: RequestChunks,
    caller: CallPeer,
    attachment: Attachment | None = None,
) -> tuple[Slot, WantedRows]:
    """Receive a payload and the rows behind it; return its slot, and the rows wanted with the next grant.

    `attachment`: the payload lies there instead of in chunks. Raises Refused, and then nothing is staged.
    """
    shard = await host.claims.admit(claim_of(header), header.plan, header.after, caller)
    codec = known_codec(header.dtype)
    if not codec.prepared:
        await host.runtime.passes.on_pool(codec.prepare)
    refusal = shard.refusal(header.ticket, header.worker) if shard.groups.count > 1 else None
    if refusal is not None:
        # Only an open ticket's payload has a known size.
        raise aborted(refusal)
    if attachment is not None and not attachment.fits(shard.layout.elements):
        raise precondition("the job's model has changed since this memory was lent; join again")
    part = shard.part(header.ticket)
    total = codec.size(part.layout)
    if attachment is None and header.bytes != total:
        raise invalid(
            f"payload of ticket {header.ticket}: expected {total} bytes ({part.layout.elements} {codec.name} "
            f"elements of server {host.server}'s part), got {header.bytes}"
        )
    rows, ahead = RowsBehind.of_push(host, shard, header, codec), WantedRows()
    slot = await host.pushes.begin(shard, header.ticket, header.worker, caller)
    complete = False
    try:
        incoming = _Incoming(host, shard, codec, part, slot)
        if attachment is None:
            await incoming.receive(chunks)
        else:
            await incoming.copy(attachment.slot)
        if rows is not None:
            found, ahead = await rows.receive(chunks)
            rows.stage(found, slot)
        await chunks.end()
        complete = True
    finally:
        if not complete:
            host.pushes.give_up(shard, slot)
    host.pushes.finish(shard, slot)
    return slot, ahead


async def pass_over(
    host: ShardHost, header: shard_pb2.PushHeader, chunks: RequestChunks, attachment: Attachment | None
) -> None:
    """Receive what follows a push of a settled ticket, and forget it. The member was admitted. Raises Refused."""
    shard = host.state.shard
    assert shard is not None
    behind = RowsBehind.of_push(host, shard, header, known_codec(header.dtype))
    left = (header.bytes if attachment is None else 0) + (0 if behind is None else behind.format.nbytes)
    while left > 0:
        left -= max(1, (await chunks.next()).nbytes)


def chunks_of(host: ShardHost, stream: ServerStream, first: memoryview | None) -> RequestChunks:
    """Return the chunks of a request of Exchange."""
    return RequestChunks(stream, shard_pb2.ExchangeRequest, first, _patience(host), alone=False)


def _patience(host: ShardHost) -> float:
    """Return the seconds for one chunk: a peer that stops in the middle of a payload holds memory of this server."""
    return host.options.worker_timeout + CHUNK_SECONDS


class PushRpc:
    """Push: one payload per call. Any generated client can speak it."""

    def __init__(self, host: ShardHost) -> None:
        self._host = host

    async def push(self, call: Call) -> None:
        """Stage the payload of one call and reply with its receipt. Raises Refused."""
        received = await call.receive()
        if received is None:
            raise invalid("expected a PushRequest with a header first, got an empty stream")
        request, first = request_in(shard_pb2.PushRequest, received)
        if not request.HasField("header"):
            raise invalid("expected a PushRequest with a header first, got none")
        chunks = RequestChunks(call, shard_pb2.PushRequest, first, _patience(self._host), alone=True)
        slot, _ = await staged(self._host, request.header, chunks, call.caller)
        await call.reply(shard_pb2.PushReply(receipt=await self._host.receipt(slot)))


def claim_of(request: shard_pb2.PushHeader | shard_pb2.PullRequest | shard_pb2.Attach) -> Claim:
    """Return the membership that the request claims, with its proof."""
    return Claim(request.job, request.worker, request.incarnation, request.membership_token)


def known_codec(number: int) -> Codec:
    """Return the codec of that number. Raises Refused if there is none."""
    try:
        return codec_numbered(number)
    except WireDtypeError as error:
        raise invalid(str(error)) from error
