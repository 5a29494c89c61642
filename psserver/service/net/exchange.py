"""Exchange: payloads of all steps on one open stream; with one server, a whole step in one round trip.

With several servers each stages its part, and the first one then takes the commit with their receipts.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import grpc

from psserver.receipts import examine, missing_receipts
from psserver.service.errors import MembershipOver, Refused, invalid, precondition
from psserver.service.guard.calls import Caller
from psserver.service.job.decider import Decider
from psserver.service.net.pulls import Wanted, base_of, find_version, message, pulled, reply, send_version
from psserver.service.net.pushes import Incoming, claim_of, parse_request, stage_slot
from psserver.service.net.rows import read_rows
from psserver.service.net.sockets import SocketListener, SocketToken
from psserver.service.net.streams import Stream
from psserver.service.store.host import ShardHost
from psserver.service.store.shared_memory import Attachment, to_wire
from psserver.shard.payload_checks import norm_of
from psserver.shard.staging import Slot
from pswire import protocol
from pswire.logs.events import event
from pswire.messages import REQUESTS
from pswire.model.rows import WantedRows
from pswire.transport import frames, segments
from pswire.transport.rows import row_codec
from pswire.transport.segments import SegmentError
from pswire.transport.wire import codec_numbered
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
    """The resources of the server that a stream holds until it ends, beside its answers: at most one of each."""

    attachment: Attachment | None = None
    token: SocketToken | None = None
    # Frees the room that was reserved for the attachment.
    detach: Callable[[], None] | None = None

    def release(self) -> None:
        """Free everything."""
        if self.token is not None:
            self.token.withdraw()
        if self.attachment is not None:
            self.attachment.release()
        if self.detach is not None:
            self.detach()


class ExchangeRpc:
    """The method Exchange, for gRPC calls and for sockets. It has no state of its own.

    `decider` and `sockets` are set before the first call: the former on server 0 only, the latter to be offered
    beside gRPC.
    """

    def __init__(self, host: ShardHost) -> None:
        self._host = host
        self.decider: Decider | None = None
        self.sockets: SocketListener | None = None

    async def exchange(self, stream: Stream) -> None:
        """Answer each request in turn. A refusal ends the stream and changes nothing."""
        resources = StreamResources()
        try:
            while (received := await stream.receive()) is not None:
                request, chunk = parse_request(received)
                if request.HasField("attach"):
                    attached = await self._attach(request.attach, resources, stream)
                    await stream.send(message(attached=attached))
                elif request.commit.receipts:
                    await self._commit_staged(request, stream)
                elif request.HasField("push"):
                    await self._push(request, chunk, stream, resources.attachment)
                elif request.HasField("pull"):
                    attachment = resources.attachment if request.in_place else None
                    await pulled(self._host, request.pull, chunk, attachment, stream)
                else:
                    raise invalid("expected an ExchangeRequest with push or pull, got one with neither")
        finally:
            resources.release()

    # A push, and the commit with it

    async def _push(
        self,
        request: shard_pb2.ExchangeRequest,
        chunk: frames.ChunkView | None,
        stream: Stream,
        attachment: Attachment | None,
    ) -> None:
        """Stage the payload, then commit it if the request says so; otherwise answer with its receipt."""
        host = self._host
        if not request.slot:
            incoming = await Incoming.begin(host, request.push, stream.caller)
            slot = await incoming.receive(stream, chunk)
            ahead = incoming.ahead
        elif attachment is None:
            raise invalid("expected attach before a push of a slot")
        else:
            try:
                slot, ahead = await stage_slot(host, request.push, attachment, request.slot, stream, chunk)
            except Refused as refused:
                # Rows that were refused half-way leave the stream within a request.
                behind = request.push.rows or request.push.next_rows
                if behind or refused.code not in LIGHT or isinstance(refused, MembershipOver):
                    raise
                # The stream and its attachment survive the refusal of one payload.
                await stream.send(message(code=refused.code.value[0], refusal=refused.message))
                return
        if request.HasField("commit"):
            await self._commit(request, slot, ahead, attachment if request.in_place else None, stream)
        else:
            await stream.send(message(receipt=await host.receipt(slot)))

    async def _commit(
        self,
        request: shard_pb2.ExchangeRequest,
        slot: Slot,
        ahead: WantedRows,
        attachment: Attachment | None,
        stream: Stream,
    ) -> None:
        """Commit the staged payload, wait for the outcome, and send the next version with it.

        Raises Refused, with nothing changed unless the worker or its session ended during the wait.
        """
        decider = self.decider
        if decider is None or decider.agreement.terms.servers != 1:
            raise precondition(
                "expected no commit here: the job has several servers; commit with their receipts"
            )
        _check_commit(request, decider.agreement.terms.job)

        async def answer(notices: list[protocol.Event]) -> None:
            await self._answer(request.push, notices, ahead, attachment, stream)

        # The job has no other server whose receipt would be needed.
        await self._decided(decider, request, norm_of([slot.squares]), answer)

    async def _commit_staged(self, request: shard_pb2.ExchangeRequest, stream: Stream) -> None:
        """Commit a payload that all servers have receipts of, and answer with the outcome. Raises as `_commit`."""
        push, host = request.push, self._host
        await host.claims.admit(claim_of(push), push.plan, push.after, stream.caller)
        decider = self.decider
        if decider is None:
            raise precondition("expected no commit here: server 0 takes them")
        terms = decider.agreement.terms
        _check_commit(request, terms.job)
        found = examine(host.secret, terms.job, push.ticket, terms.servers, list(request.commit.receipts))
        if found.missing:
            raise precondition(missing_receipts(push.ticket, found.missing))

        async def answer(notices: list[protocol.Event]) -> None:
            await stream.send(reply(notices))

        await self._decided(decider, request, found.norm, answer)

    async def _decided(
        self,
        decider: Decider,
        request: shard_pb2.ExchangeRequest,
        norm: float,
        answer: Callable[[list[protocol.Event]], Awaitable[None]],
    ) -> None:
        """Have a checked commit decided, and answer with the notices that follow from it."""
        hello, taken = request.hello, REQUESTS.codecs[protocol.Commit].from_wire(request.commit)
        outboxes = decider.routes.outboxes
        outbox, inline = outboxes.begin_inline(hello.worker, hello.incarnation, hello.session)
        try:
            await decider.take(hello.worker, hello.incarnation, taken, norm)
            notices = await inline.take(wait_for_grant=request.commit.ready)
            if not await decider.flushing.written():
                inline.forget()
                raise Refused(
                    grpc.StatusCode.UNAVAILABLE, "the decision log cannot be written: the job is over"
                )
            await answer(notices)
            inline.delivered()
        finally:
            outboxes.end_inline(outbox, inline)

    async def _answer(
        self,
        push: shard_pb2.PushHeader,
        notices: list[protocol.Event],
        ahead: WantedRows,
        attachment: Attachment | None,
        stream: Stream,
    ) -> None:
        """Send the notices, with the granted version if there is a grant among them."""
        for notice in notices:
            if isinstance(notice, protocol.Grant):
                grant = notice
                break
        else:
            await stream.send(reply(notices))
            return
        host, dtype, rows = self._host, push.weights_dtype or push.dtype, None
        try:
            try:
                shard = await host.claims.admit_member(push.worker, push.incarnation, push.plan, grant.index)
                wanted = Wanted(shard, grant.ticket, grant.version, push.worker, dtype, base_of(push))
                if ahead:
                    codec = row_codec(codec_numbered(dtype))
                    asked = (ahead, grant.ticket, grant.version)
                    rows = await read_rows(host, shard, push.worker, codec, *asked)
                found = await find_version(host, wanted, attachment, stream.caller)
            except Refused as refused:
                # The commit stands. The worker hears of its grant, and then pulls or is refused.
                ticket = event("grant_without_version", ticket=grant.ticket)
                log.info("no version with the grant of ticket %d: %s", grant.ticket, refused, extra=ticket)
                await stream.send(reply(notices))
                return
            await send_version(found, notices, stream, rows)
        finally:
            if rows is not None:
                rows.end()

    # Attaching shared memory, and offering a socket

    async def _attach(
        self, request: shard_pb2.Attach, resources: StreamResources, stream: Stream
    ) -> shard_pb2.Attached:
        if request.ask:
            return await self._offer(request, resources, stream)
        host, caller = self._host, stream.caller
        if resources.attachment is not None:
            raise invalid("expected one attach on a stream, got another")
        resources.detach = partial(host.attachments.end, request.worker, caller)
        reason = await reason_against(host, request, caller)
        reason = reason or await host.attachments.begin(request.worker, caller)
        if reason is None:
            try:
                attachment = resources.attachment = host.sharing.lend(host.elements)
            except SegmentError as error:
                reason = str(error)
        if reason is not None:
            return shard_pb2.Attached(refusal=reason)
        control, *slots = map(to_wire, attachment.places)
        return shard_pb2.Attached(control=control, slots=slots, arena_versions=host.options.arena_versions)

    async def _offer(
        self, request: shard_pb2.Attach, resources: StreamResources, stream: Stream
    ) -> shard_pb2.Attached:
        """Offer what is available to this stream. A token that it got before is withdrawn."""
        reason = await reason_against(self._host, request, stream.caller)
        if resources.token is not None:
            resources.token.withdraw()
        offer = shard_pb2.Attached(refusal=reason or "")
        if self._host.options.transport != "grpc":
            assert self.sockets is not None
            resources.token = self.sockets.issue_token(stream.fingerprint)
            offer.token, offer.port = resources.token.token, self.sockets.port
            offer.socket = "" if reason else self.sockets.name
        return offer


def _check_commit(request: shard_pb2.ExchangeRequest, job: str) -> None:
    """Raise Refused unless the commit is of what the request's push names, by the same worker."""
    hello, push = request.hello, request.push
    if hello.job != job or request.commit.ticket != push.ticket:
        raise invalid("expected a commit of the ticket that was pushed, and a hello of this job")
    if (hello.worker, hello.incarnation) != (push.worker, push.incarnation):
        raise invalid("expected a hello of the worker that pushed")


async def reason_against(host: ShardHost, request: shard_pb2.Attach, caller: Caller) -> str | None:
    """Return why no memory is shared with this worker, or None. Raises Refused for another job or worker."""
    shard = await host.claims.admit(claim_of(request), request.plan, request.after, caller)
    if host.sharing.refusal is not None:
        return host.sharing.refusal
    if request.place != segments.here():
        return f"server {host.server} is on another machine, or in another process namespace"
    if shard.layout.elements == 0:
        return f"server {host.server} holds no part of the model"
    return None
