"""Exchange: payloads of all steps on one open stream; with one server, a whole step in one round trip.

With several servers each stages its part, and the first one then takes the commit with their receipts.
"""

import logging
from functools import partial

from psserver.service.errors import MembershipOver, RequestRefused, invalid, precondition, unavailable
from psserver.service.guard.calls import CallPeer
from psserver.service.net.commits import Commits
from psserver.service.net.connection import SocketConnection
from psserver.service.net.pulls import Wanted, base_of, find_version, message, pulled, reply, send_version
from psserver.service.net.pushes import chunks_of, claim_of, pass_over, staged
from psserver.service.net.registration import bounded, parsed
from psserver.service.net.rows import read_rows
from psserver.service.net.sockets import Guest, SocketListener
from psserver.service.net.streams import RequestChunks, ServerStream, request_in
from psserver.service.store.host import ShardHost
from psserver.service.store.shared_memory import Attachment
from psserver.shard.payload_checks import norm_of
from pswire import protocol
from pswire.logs.events import event
from pswire.model.rows import WantedRows
from pswire.transport.rows import row_codec
from pswire.transport.segments import SegmentError
from pswire.transport.wire import codec_numbered
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import shard_pb2

log = logging.getLogger("ps-server")


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

    async def exchange(self, stream: ServerStream, attachment: Attachment | None = None) -> None:
        """Answer each request in turn. A refusal ends the stream and changes nothing.

        `attachment`: the memory that the worker shares with this server on this stream.
        """
        while (received := await stream.receive()) is not None:
            request, chunk = request_in(shard_pb2.ExchangeRequest, received)
            if request.HasField("attach"):
                await stream.send(message(attached=await self._offer(request.attach, stream)))
            elif request.HasField("push"):
                await self._push(request, chunks_of(self._host, stream, chunk), stream, attachment)
            elif request.HasField("commit"):
                await self._commit(request.commit, stream)
            elif request.HasField("pull"):
                await pulled(self._host, request.pull, chunk, attachment, stream)
            else:
                raise invalid(
                    "expected an ExchangeRequest with push, pull, commit or attach, got one with none"
                )

    # A connection beside gRPC

    async def _offer(self, request: shard_pb2.Attach, stream: ServerStream) -> shard_pb2.Attached:
        """Say where this server takes connections, and why it shares no memory with the worker."""
        reason = await reason_against(self._host, request, stream.caller)
        offer = shard_pb2.Attached(refusal=reason or "")
        if self._host.options.transport != "grpc":
            assert self.sockets is not None
            offer.port, offer.socket = self.sockets.port, "" if reason else self.sockets.name
        return offer

    async def admit(self, first: bytes, connection: SocketConnection) -> Guest:
        """Admit the member that the first frame of a connection names and proves. Raises Refused."""
        request, host = bounded(parsed(shard_pb2.Attach, first)), self._host
        reason = await reason_against(host, request, connection.caller)

        def over() -> bool:
            shard = host.state.shard
            if shard is None or host.state.job != request.job:
                return True
            return bool(shard.members.get(request.worker) != request.incarnation)

        return Guest(partial(self._connected, request, reason), over)

    async def _connected(
        self, request: shard_pb2.Attach, reason: str | None, connection: SocketConnection
    ) -> None:
        """Serve a member's connection. On a Unix socket it begins with memory that is shared until its end."""
        if not connection.local:
            await connection.send((shard_pb2.Attached().SerializeToString(),))
            await self.exchange(connection)
            return
        host, elements = self._host, self._host.elements
        reason = reason or host.memory.take(4 * elements)
        if reason is not None:
            await connection.send((shard_pb2.Attached(refusal=reason).SerializeToString(),))
            return
        attachment = None
        try:
            try:
                attachment = Attachment(elements, connection.lend)
            except SegmentError as error:
                await connection.send((shard_pb2.Attached(refusal=str(error)).SerializeToString(),))
                return
            lent = shard_pb2.Attached(slot_bytes=4 * elements, arena_versions=host.options.arena_versions)
            await connection.send((lent.SerializeToString(),))
            await self.exchange(connection, attachment)
        finally:
            if attachment is not None:
                attachment.release()
            host.give(4 * elements)

    # A push, and the commit with it

    async def _push(
        self,
        request: shard_pb2.ExchangeRequest,
        chunks: RequestChunks,
        stream: ServerStream,
        attachment: Attachment | None,
    ) -> None:
        """Stage the payload, then commit it if the request says so; otherwise answer with its receipt."""
        push, host, caller = request.push, self._host, stream.caller
        if not request.HasField("commit"):
            slot, _ = await staged(host, push, chunks, caller, attachment)
            await stream.send(message(receipt=await host.receipt(slot)))
            return
        commits = self._server_0()
        commits.check(request.commit, push)
        try:
            if commits.settled(request.commit):
                await host.claims.admit(claim_of(push), push.plan, push.after, caller)
                await pass_over(host, push, chunks, attachment)
                await self._commit(request.commit, stream)
                return
            slot, ahead = await staged(host, push, chunks, caller, attachment)
        except RequestRefused as refused:
            if isinstance(refused, MembershipOver) or commits.counted(request.commit):
                # An earlier try may have counted: the answer to the next one tells, perhaps after another Join.
                raise unavailable(f"{refused.message}: wait") from refused
            raise

        async def answer(notices: list[protocol.Event]) -> None:
            await self._answer(push, notices, ahead, attachment, stream)

        await commits.take(request.commit, caller, answer, norm_of([slot.squares]))

    async def _commit(self, request: pb.CommitRequest, stream: ServerStream) -> None:
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
        stream: ServerStream,
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
            except RequestRefused as refused:
                # The commit stands. The worker hears of its grant, and then pulls or is refused.
                ticket = event("grant_without_version", ticket=grant.ticket)
                log.info("no version with the grant of ticket %d: %s", grant.ticket, refused, extra=ticket)
                await stream.send(reply(notices))
                return
            await send_version(found, notices, stream, rows)
        finally:
            if rows is not None:
                rows.end()


async def reason_against(host: ShardHost, request: shard_pb2.Attach, caller: CallPeer) -> str | None:
    """Return why no memory is shared with this worker, or None. Raises Refused for another job or worker."""
    shard = await host.claims.admit(claim_of(request), request.plan, request.after, caller)
    if host.sharing.refusal is not None:
        return host.sharing.refusal
    if shard.layout.elements == 0:
        return f"server {host.server} holds no part of the model"
    return None
