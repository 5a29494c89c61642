"""Answers of Exchange: a version, where it lies or in chunks; and what came of a commit, with the next version."""

import logging
from typing import Any

from psserver.coordinator.outputs import GrantNotice, Notice
from psserver.receipts import examine
from psserver.service.errors import Refused, invalid, precondition
from psserver.service.job import Job
from psserver.service.rpc.adapters import event_to_wire, facts_from_wire
from psserver.service.shard.host import ShardHost
from psserver.service.transport import in_place
from psserver.service.transport.payloads import Outgoing
from psserver.service.transport.shared_memory import Attachment
from psserver.service.transport.streams import Stream
from pswire.logs.events import event
from pswire.transport import frames
from pswire.transport.framed_socket import Parts
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import shard_pb2

log = logging.getLogger("ps-server")


def message(**fields: Any) -> Parts:
    """A reply without a payload."""
    return (shard_pb2.ExchangeReply(**fields).SerializeToString(),)


async def version(
    host: ShardHost,
    pull: shard_pb2.PullRequest,
    events: list[pb.SessionEvent],
    attachment: Attachment | None,
    stream: Stream,
) -> None:
    """Where the version lies, for an `attachment`; its chunks otherwise, and when it cannot be read there.

    Raises Refused when it is gone.
    """
    located = await in_place.locate(host, pull, attachment, stream.caller) if attachment is not None else None
    if located is not None:
        await stream.send(message(located=located, events=events))
        return
    reading = await Outgoing.begin(host, pull, stream.caller)
    try:
        for piece in reading.pieces():
            head: Parts = message(bytes=piece.total, events=events) if piece.offset == 0 else ()
            await stream.send((*head, *frames.chunk_field(piece.offset, piece.data, reply=True)))
    finally:
        reading.end()


async def committed(
    host: ShardHost,
    job: Job | None,
    request: shard_pb2.ExchangeRequest,
    receipt: bytes,
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
    # The job has no other server that could have given one.
    found = examine(host.secret, job.terms.job, commit.ticket, 1, (receipt,))
    facts = facts_from_wire(commit, found)
    outbox, reply = job.begin_inline(hello.worker, hello.incarnation, hello.session)
    try:
        job.commit(hello.worker, hello.incarnation, commit.ticket, facts, ready=commit.ready)
        notices = await reply.take(wait_for_grant=commit.ready)
        await _outcome(host, request, notices, attachment, stream)
        reply.delivered()
    finally:
        job.end_inline(outbox, reply)


async def _outcome(
    host: ShardHost,
    request: shard_pb2.ExchangeRequest,
    notices: list[Notice],
    attachment: Attachment | None,
    stream: Stream,
) -> None:
    grant = next((n for n in notices if isinstance(n, GrantNotice)), None)
    events = [event_to_wire(notice) for notice in notices]
    if grant is None:
        await stream.send(message(events=events))
        return
    push = request.push
    pull = shard_pb2.PullRequest(
        job=push.job,
        ticket=grant.ticket,
        version=grant.version,
        plan=push.plan,
        dtype=push.dtype,
        after=grant.index,
        worker=push.worker,
        incarnation=push.incarnation,
        membership_token=push.membership_token,
    )
    answer = Answer(stream)
    try:
        await version(host, pull, events, attachment, answer)
    except Refused as refused:
        if answer.begun:
            raise
        # The commit stands; the worker learns of its grant and pulls, or is refused, by itself.
        told = event("grant_without_version", ticket=grant.ticket)
        log.info("no version with the grant of ticket %d: %s", grant.ticket, refused, extra=told)
        await stream.send(message(events=events))


class Answer:
    """A stream, and whether something was sent on it."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.caller, self.receive = stream.caller, stream.receive
        self.begun = False

    async def send(self, parts: Parts) -> None:
        self.begun = True
        await self._stream.send(parts)
