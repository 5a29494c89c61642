"""Answers of Exchange: a version, where it lies or in chunks; and what came of a commit, with the next version."""

import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

import grpc

from psserver.service.errors import Refused, invalid, precondition
from psserver.service.job.job import Job
from psserver.service.net import in_place
from psserver.service.net.payloads import Outgoing, claim_of
from psserver.service.net.streams import Stream
from psserver.service.store.host import ShardHost
from psserver.service.store.shared_memory import Attachment
from psserver.shard import Shard
from psserver.shard.payload_checks import norm_of
from psserver.shard.staging import Slot
from pswire import protocol
from pswire.logs.events import event
from pswire.messages import EVENTS, REQUESTS
from pswire.transport import frames
from pswire.transport.framed_socket import Parts
from pswire.v1 import shard_pb2

log = logging.getLogger("ps-server")


def message(**fields: Any) -> Parts:
    """A reply without a payload."""
    return (shard_pb2.ExchangeReply(**fields).SerializeToString(),)


def _reply(notices: list[protocol.Event], **fields: Any) -> Parts:
    """As `message`, with what a worker is told."""
    reply = shard_pb2.ExchangeReply(**fields)
    for notice in notices:
        EVENTS.fill(reply.events.add(), notice)
    return (reply.SerializeToString(),)


class Wanted(NamedTuple):
    """A version, for the ticket that was granted it."""

    shard: Shard
    ticket: int
    version: int
    worker: str
    dtype: int


async def pulled(
    host: ShardHost, pull: shard_pb2.PullRequest, attachment: Attachment | None, stream: Stream
) -> None:
    """The version that a worker asks for, or what the optimizer remembers. Raises Refused when it is gone."""
    if pull.slots:
        await _sent(await Outgoing.begin(host, pull, stream.caller), [], stream)
        return
    shard = await host.claims.admit(claim_of(pull), pull.plan, pull.after, stream.caller)
    wanted = Wanted(shard, pull.ticket, pull.version, pull.worker, pull.dtype)
    await _version(host, wanted, [], attachment, stream)


async def _version(
    host: ShardHost,
    wanted: Wanted,
    notices: list[protocol.Event],
    attachment: Attachment | None,
    stream: Stream,
) -> None:
    """Where the version lies, for an `attachment`; its chunks otherwise, and when it cannot be read there.

    Raises Refused when it is gone.
    """
    shard, ticket, number, worker = wanted.shard, wanted.ticket, wanted.version, wanted.worker
    located = None
    if attachment is not None:
        located = in_place.locate(host, shard, ticket, number, worker, attachment)
    if located is not None:
        await stream.send(_reply(notices, located=located))
        return
    reading = await Outgoing.of(host, shard, ticket, number, worker, wanted.dtype, stream.caller)
    await _sent(reading, notices, stream)


async def _sent(reading: Outgoing, notices: list[protocol.Event], stream: Stream) -> None:
    try:
        messages = _chunks(reading, notices)
        if reading.large:
            await stream.send_many(messages)
        for parts in messages:
            reading.check()
            await stream.send(parts)
            if reading.large:
                await stream.send_many(messages)
    finally:
        reading.end()


def _chunks(reading: Outgoing, notices: list[protocol.Event]) -> Iterator[Parts]:
    for piece in reading.pieces():
        head: Parts = _reply(notices, bytes=piece.total) if piece.offset == 0 else ()
        yield (*head, *frames.chunk_field(piece.offset, piece.data, reply=True))


async def committed(
    host: ShardHost,
    job: Job | None,
    request: shard_pb2.ExchangeRequest,
    slot: Slot,
    attachment: Attachment | None,
    stream: Stream,
) -> None:
    """Commit the staged payload, wait for what comes of it, send the next version along.

    Raises Refused with nothing changed, except when the worker or its session goes while it waits.
    """
    hello, commit = request.hello, request.commit
    if job is None or job.terms.servers != 1:
        raise precondition("expected no commit here: the job has several servers; commit in the session")
    if hello.job != job.terms.job or commit.ticket != request.push.ticket:
        raise invalid("expected a commit of the ticket that was pushed, and a hello of this job")
    if (hello.worker, hello.incarnation) != (request.push.worker, request.push.incarnation):
        raise invalid("expected a hello of the worker that pushed")
    # The job has no other server, of which a receipt would be needed.
    told, norm = REQUESTS.codecs[protocol.Commit].from_wire(commit), norm_of([slot.squares])
    outbox, reply = job.routes.outboxes.begin_inline(hello.worker, hello.incarnation, hello.session)
    try:
        job.handle(hello.worker, hello.incarnation, told, ordinary=slot.ordinary, norm=norm)
        notices = await reply.take(wait_for_grant=commit.ready)
        if not await job.flushing.written():
            reply.forget()
            raise Refused(grpc.StatusCode.UNAVAILABLE, "the decision log cannot be written: the job is over")
        await _outcome(host, request, notices, attachment, stream)
        reply.delivered()
    finally:
        job.routes.outboxes.end_inline(outbox, reply)


async def _outcome(
    host: ShardHost,
    request: shard_pb2.ExchangeRequest,
    notices: list[protocol.Event],
    attachment: Attachment | None,
    stream: Stream,
) -> None:
    grant = None
    for notice in notices:
        if isinstance(notice, protocol.Grant):
            grant = notice
            break
    if grant is None:
        await stream.send(_reply(notices))
        return
    push = request.push
    answer = Answer(stream)
    try:
        shard = await host.claims.admit_member(push.worker, push.incarnation, push.plan, grant.index)
        wanted = Wanted(shard, grant.ticket, grant.version, push.worker, push.weights_dtype or push.dtype)
        await _version(host, wanted, notices, attachment, answer)
    except Refused as refused:
        if answer.begun:
            raise
        # The commit stands; the worker learns of its grant and pulls, or is refused, by itself.
        told = event("grant_without_version", ticket=grant.ticket)
        log.info("no version with the grant of ticket %d: %s", grant.ticket, refused, extra=told)
        await stream.send(_reply(notices))


class Answer:
    """A stream, and whether something was sent on it."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.caller = stream.caller
        self.receive, self.receive_many = stream.receive, stream.receive_many
        self.begun = False

    @property
    def fingerprint(self) -> bytes:
        return self._stream.fingerprint

    async def send(self, parts: Parts) -> None:
        self.begun = True
        await self._stream.send(parts)

    async def send_many(self, messages: Iterator[Parts]) -> None:
        self.begun = True
        await self._stream.send_many(messages)
