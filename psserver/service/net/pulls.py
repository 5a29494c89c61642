"""Versions on their way to workers: read in place in shared memory, or sent in chunks."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from psserver.service.errors import invalid
from psserver.service.guard.calls import CallPeer, SendingPace
from psserver.service.net.pushes import chunks_of, claim_of, known_codec
from psserver.service.net.registration import Call
from psserver.service.net.rows import RowsAhead, RowsBehind, read_rows
from psserver.service.net.streams import ServerStream
from psserver.service.pools import LARGE_PASS
from psserver.service.store.host import ShardHost
from psserver.service.store.reading import Read, check_reader
from psserver.service.store.shared_memory import Attachment
from psserver.shard import Shard
from pswire import protocol
from pswire.messages import EVENTS
from pswire.transport import frames
from pswire.transport.codecs import BFLOAT16, FLOAT32, OCTETS, Elementwise
from pswire.transport.framed_socket import Parts
from pswire.v1 import shard_pb2

Floats = NDArray[np.float32]


class Outgoing:
    """A version on its way out. Call `end` when it is sent or given up."""

    def __init__(
        self,
        host: ShardHost,
        shard: Shard,
        ticket: int,
        codec: Elementwise,
        read: Read,
        pace: SendingPace | None,
        changes: Sequence[NDArray[Any]] | None = None,
    ) -> None:
        """`pace`: None sends the largest chunks at once. `changes`: what is sent instead of the version; none if the
        reader has it."""
        self._host, self._shard, self._ticket, self._codec = host, shard, ticket, codec
        self._read, self._pace = read, pace
        self.changes = changes
        whole = codec.itemsize * read.version.values.size
        # The bytes of the whole payload.
        self.total = whole if changes is None else sum(change.nbytes for change in changes)
        self._complete = False

    @classmethod
    async def begin(cls, host: ShardHost, request: shard_pb2.PullRequest, caller: CallPeer) -> "Outgoing":
        """Start the read of a pull request. `caller` is cut if it holds too much. Raises Refused."""
        shard = await host.claims.admit(claim_of(request), request.plan, request.after, caller)
        if request.rows or request.rows_only:
            raise invalid("expected a pull without rows of tables: Exchange reads them")
        if request.slots:
            codec = _weights_codec(request.dtype)
            read = await host.reading.start_slots(shard, request.version, caller)
            return cls(host, shard, 0, codec, read, _pace(host, caller))
        if request.table:
            read = await host.reading.start_table(shard, request.table - 1, request.version, caller)
            return cls(host, shard, 0, OCTETS, read, _pace(host, caller))
        # A PullReply cannot say that it holds changes.
        return await cls.of(host, wanted_by(shard, request)._replace(base=None), caller)

    @classmethod
    async def of(cls, host: ShardHost, wanted: "Wanted", caller: CallPeer) -> "Outgoing":
        """Start the read of a worker that has been admitted. Raises Refused if the version is gone."""
        shard, ticket, version, worker, dtype, base = wanted
        codec = _weights_codec(dtype)
        read = await host.reading.start(shard, ticket, version, worker, caller)
        changes: Sequence[NDArray[Any]] | None = None
        if base is not None and shard.stream is not None and codec is FLOAT32:
            changes = shard.stream.chain(base.version, base.checksum, version)
        elif base is not None and shard.groups.count > 1:
            values = read.version.values
            parts = shard.groups.changed(base.version, version, shard.layout.server)
            if parts or base.version == version:
                changes = [codec.encode(part.take(values)) for part in parts]
        return cls(host, shard, ticket, codec, read, _pace(host, caller), changes)

    def pieces(self) -> Iterator[memoryview]:
        """Yield the payload in pieces, at least one. Any one thread may iterate: it touches nothing of the loop's.

        Pieces are encoded one by one, so that no reader holds a whole encoded copy of the model.
        """
        values = self._read.version.values
        if self.total == 0:
            yield memoryview(b"")
        for encoded in _encoded(self._shard, values, self._codec) if self.changes is None else self.changes:
            data = frames.as_bytes(encoded)
            while data.nbytes:
                piece = frames.CHUNK_BYTES if self._pace is None else self._pace.piece
                part, data = data[:piece], data[piece:]
                began = self._host.runtime.now()
                yield part
                if self._pace is not None:
                    self._pace.sent(self._host.runtime.now() - began)
        self._complete = True

    def end(self) -> None:
        """End the read."""
        self._host.reading.end(self._shard, self._ticket, self._read, complete=self._complete)


def _pace(host: ShardHost, caller: CallPeer) -> SendingPace | None:
    if caller.paced and caller.pace is None:
        caller.pace = SendingPace(host.options.worker_timeout)
    if caller.pace is not None:
        caller.pace.begin()
    return caller.pace


def _encoded(shard: Shard, values: Floats, codec: Elementwise) -> Iterator[NDArray[Any]]:
    """Yield the payload in chunks, encoded by the shard's own pass where that is faster."""
    if codec is not BFLOAT16:
        return codec.pieces(values, frames.CHUNK_BYTES)
    step = frames.CHUNK_BYTES // codec.itemsize
    cut = (values[start : start + step] for start in range(0, values.size, step))
    return (shard.narrow(part).astype(BFLOAT16.raw, copy=False) for part in cut)


def _weights_codec(number: int) -> Elementwise:
    """Return the codec of that number. Raises Refused for one that encodes gradients only."""
    codec = known_codec(number)
    if not isinstance(codec, Elementwise):
        raise invalid(f"{codec.name} is for gradients: expected weights as float32, bfloat16 or float16")
    return codec


class Wanted(NamedTuple):
    """A version that a worker wants, and the ticket that was granted it. `base`: the version that the worker has."""

    shard: Shard
    ticket: int
    version: int
    worker: str
    dtype: int
    base: shard_pb2.Base | None


def wanted_by(shard: Shard, pull: shard_pb2.PullRequest) -> Wanted:
    """Return what a pull asks for."""
    return Wanted(shard, pull.ticket, pull.version, pull.worker, pull.dtype, base_of(pull))


def base_of(message: shard_pb2.PullRequest | shard_pb2.PushHeader) -> shard_pb2.Base | None:
    """Return the version that the worker says it has, if any."""
    return message.base if message.HasField("base") else None


def message(**fields: Any) -> Parts:
    """Return a reply without a payload."""
    return (shard_pb2.ExchangeReply(**fields).SerializeToString(),)


def reply(notices: list[protocol.Event], **fields: Any) -> Parts:
    """Return a reply without a payload that carries `notices` to the worker."""
    found = shard_pb2.ExchangeReply(**fields)
    for notice in notices:
        EVENTS.fill(found.events.add(), notice)
    return (found.SerializeToString(),)


async def pulled(
    host: ShardHost,
    pull: shard_pb2.PullRequest,
    chunk: memoryview | None,
    attachment: Attachment | None,
    stream: ServerStream,
) -> None:
    """Answer a pull: with a version, with rows of tables, or with the optimizer's state. Raises Refused if it is
    gone."""
    if pull.slots or pull.table:
        await send_version(await Outgoing.begin(host, pull, stream.caller), [], stream)
        return
    shard = await host.claims.admit(claim_of(pull), pull.plan, pull.after, stream.caller)
    wanted, rows = wanted_by(shard, pull), None
    codec = _weights_codec(pull.dtype)
    behind = RowsBehind.of_pull(host, shard, pull, codec)
    if behind is not None:
        _, keys = await behind.receive(chunks_of(host, stream, chunk))
        check_reader(shard, pull.ticket, pull.worker)
        asked = (keys, pull.ticket, pull.version)
        rows = await read_rows(host, shard, pull.worker, codec, *asked)
    try:
        if not pull.rows_only:
            await send_version(await find_version(host, wanted, attachment, stream.caller), [], stream, rows)
        elif rows is None:
            raise invalid("expected the numbers of rows to read, got none")
        else:
            await stream.send(message(row_bytes=rows.nbytes, version=rows.version))
            await _send_rows(rows, stream)
    finally:
        if rows is not None:
            rows.end()


async def find_version(
    host: ShardHost, wanted: Wanted, attachment: Attachment | None, caller: CallPeer
) -> "shard_pb2.Located | Outgoing":
    """Return the place of the version in shared memory, or a read that `send_version` must send.

    Raises Refused if the version is gone; nothing has been sent then.
    """
    if attachment is not None:
        shard, ticket, version, worker, *_ = wanted
        found = host.reading.in_place(shard, ticket, version, worker, attachment.word)
        if found is not None:
            return attachment.located(*found)
    return await Outgoing.of(host, wanted, caller)


async def send_version(
    found: "shard_pb2.Located | Outgoing",
    notices: list[protocol.Event],
    stream: ServerStream,
    rows: RowsAhead | None = None,
) -> None:
    """Send what `find_version` found, with `notices` in the first message, and `rows` behind it."""
    more = {} if rows is None else {"row_bytes": rows.nbytes}
    if isinstance(found, shard_pb2.Located):
        await stream.send(reply(notices, located=found, **more))
        if rows is not None:
            await _send_rows(rows, stream)
        return
    try:
        messages, large = _messages(found, notices, more), found.total > LARGE_PASS
        if large:
            await stream.send_many(messages)
        for parts in messages:
            await stream.send(parts)
            if large:
                await stream.send_many(messages)
    finally:
        found.end()
    if rows is not None:
        await _send_rows(rows, stream)


async def _send_rows(rows: RowsAhead, stream: ServerStream) -> None:
    for parts in rows.messages():
        await stream.send(parts)


def _messages(found: Outgoing, notices: list[protocol.Event], more: Mapping[str, int]) -> Iterator[Parts]:
    changes = found.changes
    told = {"changes": len(changes or ()), "unchanged": changes is not None and not changes}
    head = reply(notices, bytes=found.total, **told, **more)
    for piece in found.pieces():
        yield (*head, *frames.chunk_field(piece))
        head = ()


class PullRpc:
    """Pull: one version per call. Any generated client can speak it."""

    def __init__(self, host: ShardHost) -> None:
        self._host = host

    async def pull(self, call: Call) -> None:
        """Stream a version; each chunk is copied once, from the arena into its message. Raises Refused."""
        found = await Outgoing.begin(self._host, await call.only(shard_pb2.PullRequest), call.caller)
        try:
            head: Parts = (shard_pb2.PullReply(bytes=found.total).SerializeToString(),)
            for piece in found.pieces():
                await call.send((*head, *frames.chunk_field(piece)))
                head = ()
        finally:
            found.end()
