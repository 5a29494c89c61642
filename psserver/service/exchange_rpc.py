"""Exchange: payloads of all steps on one open stream; with one server, a whole step in one round trip."""

import logging
from collections.abc import Iterator

import grpc
from google.protobuf.message import DecodeError

from psserver.coordinator.outputs import GrantNotice, Notice
from psserver.service.adapters import event_to_wire
from psserver.service.coordinator_rpc import unsummable
from psserver.service.job import Job
from psserver.service.payloads import Intake, outgoing
from psserver.service.rpc import Refused, invalid, precondition
from psserver.service.shard_host import ShardHost
from pswire import frames
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import shard_pb2

log = logging.getLogger("ps-server")


class ExchangeRpc:
    """`job` is set on the server that hosts the coordinator."""

    def __init__(self, host: ShardHost, job: Job | None) -> None:
        self._host = host
        self._job = job

    def exchange(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """One request, one answer, in turn. A refusal ends the stream; nothing has changed then."""
        for message in messages:
            request, chunk = _request(message)
            if request.HasField("push"):
                yield from self._push(request, chunk, messages, context)
            elif request.HasField("pull"):
                yield from self._version(request.pull, [])
            else:
                raise invalid("expected an ExchangeRequest with push or pull, got one with neither")

    def _push(
        self,
        request: shard_pb2.ExchangeRequest,
        chunk: frames.ChunkView | None,
        messages: Iterator[bytes],
        context: grpc.ServicerContext,
    ) -> Iterator[bytes]:
        intake = Intake(self._host, request.push, context.is_active)
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
        receipt = intake.finish()
        if request.HasField("commit"):
            yield from self._commit(request, context)
        else:
            yield shard_pb2.ExchangeReply(receipt=receipt).SerializeToString()

    def _commit(self, request: shard_pb2.ExchangeRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
        """Commit on this thread, wait for what comes of it, send the next version along."""
        job, hello, commit = self._job, request.hello, request.commit
        if job is None or job.terms.servers != 1:
            raise precondition("expected no commit here: the job has several servers; commit in the session")
        if hello.job != job.terms.job or commit.ticket != request.push.ticket:
            raise invalid("expected a commit of the ticket that was pushed, and a hello of this job")
        problem = unsummable(commit)
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
            )
            notices = diversion.take(wait_for_grant=commit.ready, alive=context.is_active)
            yield from self._answer(request, notices)
            diversion.delivered()

    def _answer(self, request: shard_pb2.ExchangeRequest, notices: list[Notice]) -> Iterator[bytes]:
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
            for message in self._version(pull, events):
                yield message
                told = True
        except Refused as refused:
            if told:
                raise
            # The commit stands; the worker hears of its grant and pulls, or is refused, by itself.
            log.info("no version with the grant of ticket %d: %s", grant.ticket, refused)
            yield shard_pb2.ExchangeReply(events=events).SerializeToString()

    def _version(self, pull: shard_pb2.PullRequest, events: list[pb.SessionEvent]) -> Iterator[bytes]:
        for piece in outgoing(self._host, pull):
            head = b""
            if piece.offset == 0:
                head = shard_pb2.ExchangeReply(bytes=piece.total, events=events).SerializeToString()
            yield b"".join([head, *frames.chunk_field(piece.offset, piece.data, reply=True)])


def _request(message: bytes) -> tuple[shard_pb2.ExchangeRequest, frames.ChunkView | None]:
    try:
        rest, chunk = frames.split_chunk(message)
        request = shard_pb2.ExchangeRequest.FromString(bytes(rest))
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
    if chunk is None or request.HasField("push") or request.HasField("pull"):
        raise invalid("expected a chunk of the payload that was begun, got another request")
    return chunk
