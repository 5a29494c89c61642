"""Push and Pull, a call per payload: the contract that any generated client can speak."""

from psserver.service.errors import invalid
from psserver.service.net.payloads import Incoming, Outgoing
from psserver.service.net.registration import Call, bounded
from psserver.service.store.host import ShardHost
from pswire.patience import CHUNK_SECONDS
from pswire.transport import frames
from pswire.v1 import shard_pb2


class ShardRpc:
    """Called by the task of each call; it keeps nothing of its own."""

    def __init__(self, host: ShardHost) -> None:
        self._host = host

    async def push(self, call: Call) -> None:
        """Stage a payload: each chunk is copied once, from its message into the slot, and checked."""
        incoming = await Incoming.begin(self._host, await _header(call), call.caller)
        finished = False
        try:
            while (message := await self._prompt(call)) is not None:
                part = _parse(message)
                if not isinstance(part, frames.ChunkView):
                    raise invalid("expected chunks after the header, got another header")
                await incoming.take(part)
            finished = True
        finally:
            if not finished:
                incoming.give_up()
        await call.reply(shard_pb2.PushReply(receipt=self._host.receipt(incoming.finish())))

    async def _prompt(self, call: Call) -> bytes | None:
        """A payload that was begun goes on: whoever stops in the middle of one holds memory of this server."""
        with call.caller.within(self._host.options.worker_timeout + CHUNK_SECONDS):
            return await call.receive()

    async def pull(self, call: Call) -> None:
        """Stream a version: each chunk is copied once, from the arena into its message."""
        reading = await Outgoing.begin(self._host, await call.only(shard_pb2.PullRequest), call.caller)
        try:
            for piece in reading.pieces():
                total = piece.total if piece.offset == 0 else None
                reading.check()
                await call.send((frames.pull_chunk(piece.offset, piece.data, total),))
        finally:
            reading.end()


async def _header(call: Call) -> shard_pb2.PushHeader:
    first = await call.receive()
    if first is None:
        raise invalid("expected a PushRequest with a header first, got an empty stream")
    part = _parse(first)
    if isinstance(part, frames.ChunkView):
        raise invalid("expected a PushRequest with a header first, got a chunk")
    header: shard_pb2.PushHeader = bounded(part)
    return header


def _parse(message: bytes) -> shard_pb2.PushHeader | frames.ChunkView:
    try:
        return frames.parse_push(message)
    except frames.FrameError as error:
        raise invalid(str(error)) from error
