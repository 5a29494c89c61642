"""Exchange: payloads of all steps on one open stream; with one server, a whole step in one round trip."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import grpc
from google.protobuf.message import DecodeError

from psserver.service.errors import MembershipOver, Refused, invalid
from psserver.service.job.job import Job
from psserver.service.net import in_place
from psserver.service.net.exchange_replies import committed, message, pulled
from psserver.service.net.loop import LARGE_PASS
from psserver.service.net.payloads import Incoming
from psserver.service.net.registration import bounded
from psserver.service.net.sockets import SocketListener, SocketToken
from psserver.service.net.streams import Stream
from psserver.service.store.host import ShardHost
from psserver.service.store.shared_memory import Attachment
from psserver.shard.staging import Slot
from pswire.patience import CHUNK_SECONDS
from pswire.transport import frames
from pswire.transport.frames import Message
from pswire.v1 import shard_pb2

# Refusals of one payload, after which the worker may try another.
LIGHT = (
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)


@dataclass(slots=True)
class StreamResources:
    """What a stream holds of its server beyond answers, until it ends. At most one of each."""

    attachment: Attachment | None = None
    token: SocketToken | None = None
    # Gives back the room that was made for the attachment.
    detach: Callable[[], None] | None = None

    def release(self) -> None:
        if self.token is not None:
            self.token.withdraw()
        if self.attachment is not None:
            self.attachment.release()
        if self.detach is not None:
            self.detach()


class ExchangeRpc:
    """`job` is set on the server that hosts the coordinator; `sockets` are offered beside gRPC.

    It keeps nothing of its own.
    """

    def __init__(self, host: ShardHost, job: Job | None, sockets: SocketListener) -> None:
        self._host = host
        self._job = job
        self._sockets = sockets

    async def exchange(self, stream: Stream) -> None:
        """One request, one answer, in turn. A refusal ends the stream; nothing has changed then."""
        resources = StreamResources()
        try:
            while (received := await stream.receive()) is not None:
                request, chunk = _request(received)
                if request.HasField("attach"):
                    attached = await self._attach(request.attach, resources, stream)
                    await stream.send(message(attached=attached))
                else:
                    await self._serve(request, chunk, stream, resources.attachment)
        finally:
            resources.release()

    async def _attach(
        self, request: shard_pb2.Attach, resources: StreamResources, stream: Stream
    ) -> shard_pb2.Attached:
        if request.ask:
            return await self._offer(request, resources, stream)
        caller = stream.caller
        if resources.attachment is not None:
            raise invalid("expected one attach on a stream, got another")
        resources.detach = partial(self._host.attachments.end, request.worker, caller)
        resources.attachment, reply = await in_place.attach(self._host, request, caller)
        return reply

    async def _offer(
        self, request: shard_pb2.Attach, resources: StreamResources, stream: Stream
    ) -> shard_pb2.Attached:
        """What is available to this stream. A token that it got before is withdrawn."""
        reason = await in_place.reason_against(self._host, request, stream.caller)
        if resources.token is not None:
            resources.token.withdraw()
        offer = shard_pb2.Attached(refusal=reason or "")
        if self._host.options.transport != "grpc":
            resources.token = self._sockets.issue_token(stream.fingerprint)
            offer.token, offer.port = resources.token.token, self._sockets.port
            offer.socket = "" if reason else self._sockets.name
        return offer

    async def _serve(
        self,
        request: shard_pb2.ExchangeRequest,
        chunk: frames.ChunkView | None,
        stream: Stream,
        attachment: Attachment | None,
    ) -> None:
        if request.HasField("push") and request.slot:
            await self._push_slot(request, stream, attachment)
        elif request.HasField("push"):
            await self._push(request, chunk, stream, attachment)
        elif request.HasField("pull"):
            await pulled(self._host, request.pull, attachment if request.in_place else None, stream)
        else:
            raise invalid("expected an ExchangeRequest with push or pull, got one with neither")

    async def _push_slot(
        self, request: shard_pb2.ExchangeRequest, stream: Stream, attachment: Attachment | None
    ) -> None:
        """A payload that is here already. A refusal of it does not cost the stream, nor what is attached to it."""
        if attachment is None:
            raise invalid("expected attach before a push of a slot")
        try:
            slot = await in_place.stage(self._host, request.push, attachment, request.slot, stream.caller)
        except Refused as refused:
            if refused.code not in LIGHT or isinstance(refused, MembershipOver):
                raise
            await stream.send(message(code=refused.code.value[0], refusal=refused.message))
            return
        await self._staged(request, slot, stream, attachment)

    async def _push(
        self,
        request: shard_pb2.ExchangeRequest,
        chunk: frames.ChunkView | None,
        stream: Stream,
        attachment: Attachment | None,
    ) -> None:
        incoming = await Incoming.begin(self._host, request.push, stream.caller)
        payload = _Payload(incoming, chunk)
        arrived = False
        try:
            while payload.first is not None or not payload.complete:
                with stream.caller.within(self._host.options.worker_timeout + CHUNK_SECONDS):
                    if payload.left >= LARGE_PASS:
                        await stream.receive_many(payload.take)
                    await payload.take_first()
                    if not payload.complete:
                        payload.first = _chunk(await stream.receive())
            arrived = True
        finally:
            if not arrived:
                incoming.give_up()
        await self._staged(request, incoming.finish(), stream, attachment)

    async def _staged(
        self,
        request: shard_pb2.ExchangeRequest,
        slot: Slot,
        stream: Stream,
        attachment: Attachment | None,
    ) -> None:
        if request.HasField("commit"):
            readable = attachment if request.in_place else None
            await committed(self._host, self._job, request, slot, readable, stream)
        else:
            await stream.send(message(receipt=self._host.receipt(slot)))


def _request(received: Message) -> tuple[shard_pb2.ExchangeRequest, frames.ChunkView | None]:
    chunk = None
    try:
        if len(received) > frames.SMALL:
            rest, chunk = frames.split_chunk(received)
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


class _Payload:
    """Chunks on their way into `incoming`. `first`: one that is here, and goes in before those that come.

    It goes in with them where several come: another thread is asked once.
    """

    def __init__(self, incoming: Incoming, first: frames.ChunkView | None) -> None:
        self._incoming, self.first = incoming, first

    @property
    def left(self) -> int:
        """Bytes that have not come yet."""
        return self._incoming.left - (0 if self.first is None else self.first.data.nbytes)

    @property
    def complete(self) -> bool:
        return self._incoming.complete

    async def take_first(self) -> None:
        """Raises Refused."""
        first, self.first = self.first, None
        if first is not None:
            await self._incoming.take(first)

    def take(self, received: Message) -> bool:
        """On another thread, while nothing else is done with it. Is more wanted? Raises Refused."""
        first, self.first = self.first, None
        if first is not None:
            self._incoming.feed(first)
        self._incoming.feed(_chunk(received))
        return not self._incoming.complete


def _chunk(received: Message | None) -> frames.ChunkView:
    if received is None:
        raise invalid("expected more chunks of the payload, but the stream ended")
    request, chunk = _request(received)
    if chunk is None or request.HasField("push") or request.HasField("pull") or request.HasField("attach"):
        raise invalid("expected a chunk of the payload that was begun, got another request")
    return chunk
