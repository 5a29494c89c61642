"""Exchange: payloads of all steps on one open stream; with one server, a whole step in one round trip.

With several servers each stages its part, and the first one then takes the commit with their receipts.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import grpc

from psserver.service.errors import MembershipOver, Refused, invalid, precondition
from psserver.service.guard.calls import Caller
from psserver.service.net.commits import Commits, unavailable
from psserver.service.net.pulls import Wanted, base_of, find_version, message, pulled, reply, send_version
from psserver.service.net.pushes import Incoming, claim_of, parse_request, pass_over, stage_slot
from psserver.service.net.rows import read_rows
from psserver.service.net.sockets import SocketListener, SocketToken
from psserver.service.net.streams import Stream
from psserver.service.store.host import ShardHost
from psserver.service.store.shared_memory import Attachment, to_wire
from psserver.shard.payload_checks import norm_of
from psserver.shard.staging import Slot
from pswire import protocol
from pswire.logs.events import event
from pswire.model.rows import WantedRows
from pswire.transport import frames, segments
from pswire.transport.rows import row_codec
from pswire.transport.segments import SegmentError
from pswire.transport.wire import codec_numbered
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

    `commits` and `sockets` are set before the first call: the former on server 0 only, the latter to be offered
    beside gRPC. `elsewhere`: the refusal of commits by any other server.
    """

    def __init__(self, host: ShardHost) -> None:
        self._host = host
        self.commits: Commits | None = None
        self.elsewhere = precondition("expected no commit here: server 0 takes them")
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
                elif request.HasField("push"):
                    await self._push(request, chunk, stream, resources.attachment)
                elif request.HasField("commit"):
                    await self._commit(request.commit, stream)
                elif request.HasField("pull"):
                    attachment = resources.attachment if request.in_place else None
                    await pulled(self._host, request.pull, chunk, attachment, stream)
                else:
                    raise invalid(
                        "expected an ExchangeRequest with push, pull, commit or attach, got one with none"
                    )
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
        push, host = request.push, self._host
        if not request.HasField("commit"):
            staged = await self._staged(request, chunk, stream, attachment)
            if staged is not None:
                await stream.send(message(receipt=await host.receipt(staged[0])))
            return
        commits = self._server_0()
        commits.check(request.commit, push)
        try:
            if commits.settled(request.commit):
                await host.claims.admit(claim_of(push), push.plan, push.after, stream.caller)
                await pass_over(host, request, chunk, stream)
                await self._commit(request.commit, stream)
                return
            staged = await self._staged(request, chunk, stream, attachment)
        except Refused as refused:
            if isinstance(refused, MembershipOver) or commits.counted(request.commit):
                # An earlier try may have counted: the answer to the next one tells, perhaps after another Join.
                raise unavailable(f"{refused.message}: wait") from refused
            raise
        if staged is None:
            return
        slot, ahead = staged
        place = attachment if request.in_place else None

        async def answer(notices: list[protocol.Event]) -> None:
            await self._answer(push, notices, ahead, place, stream)

        await commits.take(request.commit, stream.caller, answer, norm_of([slot.squares]))

    async def _staged(
        self,
        request: shard_pb2.ExchangeRequest,
        chunk: frames.ChunkView | None,
        stream: Stream,
        attachment: Attachment | None,
    ) -> tuple[Slot, WantedRows] | None:
        """Return the staged payload, and the rows that the worker wants with its next grant; None: the refusal was
        sent, and the stream goes on."""
        host = self._host
        if not request.slot:
            incoming = await Incoming.begin(host, request.push, stream.caller)
            slot = await incoming.receive(stream, chunk)
            return slot, incoming.ahead
        if attachment is None:
            raise invalid("expected attach before a push of a slot")
        try:
            return await stage_slot(host, request.push, attachment, request.slot, stream, chunk)
        except Refused as refused:
            # Rows that were refused half-way leave the stream within a request.
            behind = request.push.rows or request.push.next_rows
            if behind or refused.code not in LIGHT or isinstance(refused, MembershipOver):
                raise
            if request.HasField("commit") and self._server_0().counted(request.commit):
                raise
            # The stream and its attachment survive the refusal of one payload.
            await stream.send(message(code=refused.code.value[0], refusal=refused.message))
            return None

    async def _commit(self, request: pb.CommitRequest, stream: Stream) -> None:
        """Take a commit of what all servers hold, or of a settled ticket. Raises as `Commits.take`."""

        async def answer(notices: list[protocol.Event]) -> None:
            await stream.send(reply(notices))

        await self._server_0().take(request, stream.caller, answer)

    def _server_0(self) -> Commits:
        """Return what takes commits. Raises Refused on any other server."""
        if self.commits is None:
            raise self.elsewhere.afresh()
        return self.commits

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
