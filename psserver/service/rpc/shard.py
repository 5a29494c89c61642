"""Push and Pull, a call per payload: the contract that any generated client can speak."""

from collections.abc import Iterator

from psserver.service.errors import invalid
from psserver.service.limits.watch import Caller
from psserver.service.rpc.registration import bounded
from psserver.service.shard.host import ShardHost
from psserver.service.transport.payloads import Intake, outgoing
from pswire.patience import CHUNK_SECONDS
from pswire.transport import frames
from pswire.v1 import shard_pb2


class ShardRpc:
    """Called by the thread of each call; it keeps nothing of its own."""

    def __init__(self, host: ShardHost) -> None:
        self._host = host

    def push(self, messages: Iterator[bytes], caller: Caller) -> shard_pb2.PushReply:
        """Stage a payload: each chunk is copied once, from its message into the slot, and checked."""
        intake = Intake(self._host, _header(messages), caller)
        finished = False
        try:
            for message in self._prompt(messages, caller):
                part = _parse(message)
                if not isinstance(part, frames.ChunkView):
                    raise invalid("expected chunks after the header, got another header")
                intake.take(part)
            finished = True
        finally:
            if not finished:
                intake.give_up()
        return shard_pb2.PushReply(receipt=intake.finish())

    def _prompt(self, messages: Iterator[bytes], caller: Caller) -> Iterator[bytes]:
        """A payload that was begun goes on: whoever stops in the middle of one holds memory of this server."""
        while True:
            with caller.within(self._host.options.worker_timeout + CHUNK_SECONDS):
                message = next(messages, None)
            if message is None:
                return
            yield message

    def pull(self, request: shard_pb2.PullRequest, caller: Caller) -> Iterator[bytes]:
        """Stream a version: each chunk is copied once, from the arena into its message."""
        for piece in outgoing(self._host, request, caller):
            yield frames.pull_chunk(piece.offset, piece.data, piece.total if piece.offset == 0 else None)


def _header(messages: Iterator[bytes]) -> shard_pb2.PushHeader:
    first = next(messages, None)
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
