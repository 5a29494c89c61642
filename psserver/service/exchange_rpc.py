"""Exchange: payloads of all steps on one open stream; with one server, a whole step in one round trip."""

import logging
from collections.abc import Iterator

import grpc
from google.protobuf.message import DecodeError

from psserver.coordinator.outputs import GrantNotice, Notice
from psserver.service import in_place
from psserver.service.adapters import event_to_wire, times_from_wire
from psserver.service.coordinator_rpc import improper
from psserver.service.job import Job
from psserver.service.lines import Caller, Lines
from psserver.service.payloads import Intake, outgoing
from psserver.service.rpc import Refused, invalid, precondition
from psserver.service.shard_host import ShardHost
from psserver.service.sharing import Attachment
from pswire import frames
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import shard_pb2

log = logging.getLogger("ps-server")

# Refusals of one payload, after which the worker may try another.
LIGHT = (
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)


class ExchangeRpc:
    """`job` is set on the server that hosts the coordinator."""

    def __init__(self, host: ShardHost, job: Job | None) -> None:
        self._host = host
        self._job = job
        # For workers of this machine.
        self.lines = Lines(self.exchange)

    def exchange(self, messages: Iterator[bytes], caller: Caller) -> Iterator[bytes]:
        """One request, one answer, in turn. A refusal ends the stream; nothing has changed then."""
        # Memory shared with this worker, at most one; it goes with the stream.
        shared: list[Attachment] = []
        try:
            for message in messages:
                request, chunk = _request(message)
                if request.HasField("attach"):
                    yield self._attach(request.attach, shared)
                else:
                    attachment = shared[0] if shared else None
                    yield from self._serve(request, chunk, messages, attachment, caller)
        finally:
            for attachment in shared:
                attachment.let_go()

    def _attach(self, request: shard_pb2.Attach, shared: list[Attachment]) -> bytes:
        if request.ask:
            return shard_pb2.ExchangeReply(attached=self._told(request)).SerializeToString()
        if shared:
            raise invalid("expected one attach on a stream, got another")
        attachment, reply = in_place.attach(self._host, request)
        if attachment is not None:
            shared.append(attachment)
        return shard_pb2.ExchangeReply(attached=reply).SerializeToString()

    def _told(self, request: shard_pb2.Attach) -> shard_pb2.Attached:
        reason = in_place.reason_against(self._host, request)
        return shard_pb2.Attached(refusal=reason or "", socket="" if reason else self.lines.name)

    def _serve(
        self,
        request: shard_pb2.ExchangeRequest,
        chunk: frames.ChunkView | None,
        messages: Iterator[bytes],
        attachment: Attachment | None,
        caller: Caller,
    ) -> Iterator[bytes]:
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
    ) -> Iterator[bytes]:
        """A payload that is here already. A refusal of it does not cost the stream, nor what is attached to it."""
        if attachment is None:
            raise invalid("expected attach before a push of a slot")
        try:
            receipt = in_place.stage(self._host, request.push, attachment, request.slot, caller.is_active)
        except Refused as refused:
            if refused.code not in LIGHT:
                raise
            code = refused.code.value[0]
            yield shard_pb2.ExchangeReply(code=code, refusal=refused.message).SerializeToString()
            return
        yield from self._staged(request, receipt, attachment, caller)

    def _push(
        self,
        request: shard_pb2.ExchangeRequest,
        chunk: frames.ChunkView | None,
        messages: Iterator[bytes],
        attachment: Attachment | None,
        caller: Caller,
    ) -> Iterator[bytes]:
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
    ) -> Iterator[bytes]:
        if request.HasField("commit"):
            yield from self._commit(request, attachment if request.in_place else None, caller)
        else:
            yield shard_pb2.ExchangeReply(receipt=receipt).SerializeToString()

    def _commit(
        self,
        request: shard_pb2.ExchangeRequest,
        attachment: Attachment | None,
        caller: Caller,
    ) -> Iterator[bytes]:
        """Commit on this thread, wait for what comes of it, send the next version along."""
        job, hello, commit = self._job, request.hello, request.commit
        if job is None or job.terms.servers != 1:
            raise precondition("expected no commit here: the job has several servers; commit in the session")
        if hello.job != job.terms.job or commit.ticket != request.push.ticket:
            raise invalid("expected a commit of the ticket that was pushed, and a hello of this job")
        problem = improper(commit)
        if problem is not None:
            raise invalid(problem)
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
    ) -> Iterator[bytes]:
        grant = next((n for n in notices if isinstance(n, GrantNotice)), None)
        events = [event_to_wire(notice) for notice in notices]
        if grant is None:
            yield shard_pb2.ExchangeReply(events=events).SerializeToString()
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
            yield shard_pb2.ExchangeReply(events=events).SerializeToString()

    def _version(
        self,
        pull: shard_pb2.PullRequest,
        events: list[pb.SessionEvent],
        attachment: Attachment | None,
    ) -> Iterator[bytes]:
        """Where the version lies, for an `attachment`; its chunks otherwise, and when it cannot be read there."""
        located = in_place.locate(self._host, pull, attachment) if attachment is not None else None
        if located is not None:
            yield shard_pb2.ExchangeReply(located=located, events=events).SerializeToString()
            return
        for piece in outgoing(self._host, pull):
            head = b""
            if piece.offset == 0:
                head = shard_pb2.ExchangeReply(bytes=piece.total, events=events).SerializeToString()
            yield b"".join([head, *frames.chunk_field(piece.offset, piece.data, reply=True)])


def _request(message: bytes) -> tuple[shard_pb2.ExchangeRequest, frames.ChunkView | None]:
    chunk = None
    try:
        if len(message) > frames.SMALL:
            rest, chunk = frames.split_chunk(message)
            request = shard_pb2.ExchangeRequest.FromString(bytes(rest))
        else:
            request = shard_pb2.ExchangeRequest.FromString(message)
    except (frames.FrameError, DecodeError) as error:
        text = f"expected a pswire.v1.ExchangeRequest, got {len(message)} bytes that are none"
        raise invalid(text) from error
    if chunk is None and request.HasField("chunk"):
        chunk = frames.ChunkView(request.chunk.offset, memoryview(request.chunk.data))
    return request, chunk


def _next_chunk(messages: Iterator[bytes]) -> frames.ChunkView:
    message = next(messages, None)
    if message is None:
        raise invalid("expected more chunks of the payload, but the stream ended")
    request, chunk = _request(message)
    if chunk is None or request.HasField("push") or request.HasField("pull") or request.HasField("attach"):
        raise invalid("expected a chunk of the payload that was begun, got another request")
    return chunk
