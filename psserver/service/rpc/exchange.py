"""Exchange: payloads of all steps on one open stream; with one server, a whole step in one round trip."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from psserver.coordinator.outputs import GrantNotice, Notice
from psserver.service.job import Job
from psserver.service.rpc.adapters import event_to_wire, times_from_wire
from psserver.service.rpc.registration import Refused, bounded, invalid, precondition
from psserver.service.shard_host import ShardHost
from psserver.service.transport import in_place
from psserver.service.transport.payloads import Intake, outgoing
from psserver.service.transport.shared_memory import Attachment
from psserver.service.transport.sockets import Caller, SocketListener, SocketToken
from pswire.transport import frames
from pswire.transport.framed_socket import Parts
from pswire.transport.frames import Message
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import shard_pb2

log = logging.getLogger("ps-server")

# Refusals of one payload, after which the worker may try another.
LIGHT = (
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)


@dataclass(slots=True)
class StreamResources:
    """What a stream has of its server beyond answers; it goes with the stream. At most one of each."""

    attachment: Attachment | None = None
    invitation: SocketToken | None = None

    def let_go(self) -> None:
        if self.invitation is not None:
            self.invitation.withdraw()
        if self.attachment is not None:
            self.attachment.let_go()


class ExchangeRpc:
    """`job` is set on the server that hosts the coordinator; `bind` and `port`: where lines come in."""

    def __init__(self, host: ShardHost, job: Job | None, bind: str = "127.0.0.1", port: int = 0) -> None:
        self._host = host
        self._job = job
        self.lines = SocketListener(self.exchange, bind, port)

    def exchange(self, messages: Iterator[Message], caller: Caller) -> Iterator[Parts]:
        """One request, one answer, in turn; messages in pieces. A refusal ends the stream; nothing has changed then."""
        agreed = StreamResources()
        try:
            for message in messages:
                request, chunk = _request(message)
                if request.HasField("attach"):
                    yield _whole(attached=self._attach(request.attach, agreed))
                else:
                    yield from self._serve(request, chunk, messages, agreed.attachment, caller)
        finally:
            agreed.let_go()

    def _attach(self, request: shard_pb2.Attach, agreed: StreamResources) -> shard_pb2.Attached:
        if request.ask:
            return self._told(request, agreed)
        if agreed.attachment is not None:
            raise invalid("expected one attach on a stream, got another")
        agreed.attachment, reply = in_place.attach(self._host, request)
        return reply

    def _told(self, request: shard_pb2.Attach, agreed: StreamResources) -> shard_pb2.Attached:
        """What can be had on this stream. Whoever asks again gives back what it had."""
        reason = in_place.reason_against(self._host, request)
        if agreed.invitation is not None:
            agreed.invitation.withdraw()
        told = shard_pb2.Attached(refusal=reason or "")
        if self._host.options.transport != "grpc":
            agreed.invitation = self.lines.invite()
            told.token, told.port = agreed.invitation.token, self.lines.port
            told.socket = "" if reason else self.lines.name
        return told

    def _serve(
        self,
        request: shard_pb2.ExchangeRequest,
        chunk: frames.ChunkView | None,
        messages: Iterator[Message],
        attachment: Attachment | None,
        caller: Caller,
    ) -> Iterator[Parts]:
        if request.HasField("push") and request.slot:
            yield from self._push_slot(request, attachment, caller)
        elif request.HasField("push"):
            yield from self._push(request, chunk, messages, attachment, caller)
        elif request.HasField("pull"):
            yield from self._version(request.pull, [], attachment if request.in_place else None)
        else:
            raise invalid("expected an ExchangeRequest with push or pull, got one with neither")

    def _push_slot(
        self,
        request: shard_pb2.ExchangeRequest,
        attachment: Attachment | None,
        caller: Caller,
    ) -> Iterator[Parts]:
        """A payload that is here already. A refusal of it does not cost the stream, nor what is attached to it."""
        if attachment is None:
            raise invalid("expected attach before a push of a slot")
        try:
            receipt = in_place.stage(self._host, request.push, attachment, request.slot, caller.is_active)
        except Refused as refused:
            if refused.code not in LIGHT:
                raise
            code = refused.code.value[0]
            yield _whole(code=code, refusal=refused.message)
            return
        yield from self._staged(request, receipt, attachment, caller)

    def _push(
        self,
        request: shard_pb2.ExchangeRequest,
        chunk: frames.ChunkView | None,
        messages: Iterator[Message],
        attachment: Attachment | None,
        caller: Caller,
    ) -> Iterator[Parts]:
        intake = Intake(self._host, request.push, caller.is_active)
        arrived = False
        try:
            if chunk is not None:
                intake.take(chunk)
            while not intake.complete:
                intake.take(_next_chunk(messages))
            arrived = True
        finally:
            if not arrived:
                intake.give_up()
        yield from self._staged(request, intake.finish(), attachment, caller)

    def _staged(
        self,
        request: shard_pb2.ExchangeRequest,
        receipt: bytes,
        attachment: Attachment | None,
        caller: Caller,
    ) -> Iterator[Parts]:
        if request.HasField("commit"):
            yield from self._commit(request, attachment if request.in_place else None, caller)
        else:
            yield _whole(receipt=receipt)

    def _commit(
        self,
        request: shard_pb2.ExchangeRequest,
        attachment: Attachment | None,
        caller: Caller,
    ) -> Iterator[Parts]:
        """Commit on this thread, wait for what comes of it, send the next version along."""
        job, hello, commit = self._job, request.hello, request.commit
        if job is None or job.terms.servers != 1:
            raise precondition("expected no commit here: the job has several servers; commit in the session")
        if hello.job != job.terms.job or commit.ticket != request.push.ticket:
            raise invalid("expected a commit of the ticket that was pushed, and a hello of this job")
        with job.divert(hello.worker, hello.incarnation, hello.session) as diversion:
            job.commit(
                hello.worker,
                hello.incarnation,
                commit.ticket,
                batch=commit.batch,
                samples=commit.samples,
                loss=commit.loss,
                norm=commit.norm,
                ready=commit.ready,
                times=times_from_wire(commit),
            )
            notices = diversion.take(wait_for_grant=commit.ready, alive=caller.is_active)
            yield from self._answer(request, notices, attachment)
            diversion.delivered()

    def _answer(
        self,
        request: shard_pb2.ExchangeRequest,
        notices: list[Notice],
        attachment: Attachment | None,
    ) -> Iterator[Parts]:
        grant = next((n for n in notices if isinstance(n, GrantNotice)), None)
        events = [event_to_wire(notice) for notice in notices]
        if grant is None:
            yield _whole(events=events)
            return
        push = request.push
        pull = shard_pb2.PullRequest(
            job=push.job,
            ticket=grant.ticket,
            version=grant.version,
            plan=push.plan,
            dtype=push.dtype,
            after=grant.index,
        )
        told = False
        try:
            for message in self._version(pull, events, attachment):
                yield message
                told = True
        except Refused as refused:
            if told:
                raise
            # The commit stands; the worker hears of its grant and pulls, or is refused, by itself.
            log.info("no version with the grant of ticket %d: %s", grant.ticket, refused)
            yield _whole(events=events)

    def _version(
        self,
        pull: shard_pb2.PullRequest,
        events: list[pb.SessionEvent],
        attachment: Attachment | None,
    ) -> Iterator[Parts]:
        """Where the version lies, for an `attachment`; its chunks otherwise, and when it cannot be read there."""
        located = in_place.locate(self._host, pull, attachment) if attachment is not None else None
        if located is not None:
            yield _whole(located=located, events=events)
            return
        for piece in outgoing(self._host, pull):
            head: Parts = _whole(bytes=piece.total, events=events) if piece.offset == 0 else ()
            yield *head, *frames.chunk_field(piece.offset, piece.data, reply=True)


def _whole(**fields: Any) -> Parts:
    """A reply without a payload."""
    return (shard_pb2.ExchangeReply(**fields).SerializeToString(),)


def _request(message: Message) -> tuple[shard_pb2.ExchangeRequest, frames.ChunkView | None]:
    chunk = None
    try:
        if len(message) > frames.SMALL:
            rest, chunk = frames.split_chunk(message)
            request = shard_pb2.ExchangeRequest.FromString(bytes(rest))
        else:
            request = shard_pb2.ExchangeRequest.FromString(bytes(message))
    except (frames.FrameError, DecodeError) as error:
        text = f"expected a pswire.v1.ExchangeRequest, got {len(message)} bytes that do not parse"
        raise invalid(text) from error
    bounded(request)
    if chunk is None and request.HasField("chunk"):
        chunk = frames.ChunkView(request.chunk.offset, memoryview(request.chunk.data))
    return request, chunk


def _next_chunk(messages: Iterator[Message]) -> frames.ChunkView:
    message = next(messages, None)
    if message is None:
        raise invalid("expected more chunks of the payload, but the stream ended")
    request, chunk = _request(message)
    if chunk is None or request.HasField("push") or request.HasField("pull") or request.HasField("attach"):
        raise invalid("expected a chunk of the payload that was begun, got another request")
    return chunk
