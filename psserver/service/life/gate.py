"""The coordinator's methods on a server of a job with replicas."""

from collections.abc import Awaitable, Callable

from psserver.service.errors import unavailable
from psserver.service.net.coordinator import CoordinatorRpc
from psserver.service.net.registration import Call
from psserver.service.replicas.overview import Overview
from pswire.transport.leader import NOT_LEADING
from pswire.v1 import coordinator_pb2 as pb


class LeaderGate:
    """The methods of the coordinator if this server leads, else refusals. `stable`: waits until all copies hold what it
    has taken so far."""

    def __init__(self, overview: Overview, stable: Callable[[], Awaitable[None]]) -> None:
        self._overview, self._stable = overview, stable
        self._open: CoordinatorRpc | None = None

    def open(self, rpc: CoordinatorRpc) -> None:
        self._open = rpc

    def close(self) -> None:
        self._open = None

    async def wait_for_log_readers(self) -> None:
        """Wait for those who read the log of the server that leads, which this one is."""
        await self._rpc.wait_for_log_readers()

    @property
    def _rpc(self) -> CoordinatorRpc:
        if self._open is None:
            raise unavailable(NOT_LEADING)
        return self._open

    async def session(self, call: Call) -> None:
        self._overview.reached()
        await self._rpc.session(call)

    def parse_join(self, data: bytes, call: Call) -> pb.JoinRequest:
        return self._rpc.parse_join(data, call)

    async def join(self, request: pb.JoinRequest, call: Call) -> pb.JoinReply:
        self._overview.reached()
        return await self._rpc.join(request, call)

    async def commit(self, request: pb.CommitRequest, call: Call) -> pb.CommitReply:
        return await self._rpc.commit(request, call)

    async def gather_epoch(self, request: pb.GatherEpochRequest, call: Call) -> pb.GatherEpochReply:
        return await self._rpc.gather_epoch(request, call)

    async def find_coordinator(
        self, request: pb.FindCoordinatorRequest, call: Call
    ) -> pb.FindCoordinatorReply:
        return self._overview.found(request.unreached if request.HasField("unreached") else None)

    async def promote(self, request: pb.PromoteRequest, call: Call) -> pb.PromoteReply:
        return pb.PromoteReply(epoch=self._overview.promote(request.job))

    async def note(self, request: pb.NoteRequest, call: Call) -> pb.NoteReply:
        reply = await self._rpc.note(request, call)
        await self._stable()
        return reply

    async def change_policy(self, request: pb.ChangePolicyRequest, call: Call) -> pb.ChangePolicyReply:
        reply = await self._rpc.change_policy(request, call)
        await self._stable()
        return reply

    async def status(self, request: pb.StatusRequest, call: Call) -> pb.StatusReply:
        return await self._rpc.status(request, call)
