"""The methods of a server's gRPC services."""

from typing import TYPE_CHECKING, cast

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from psserver.service.rpc.coordinator import CoordinatorRpc
from psserver.service.rpc.exchange import ExchangeRpc
from psserver.service.rpc.follow import FollowRpc, follow_nobody
from psserver.service.rpc.foreign import Parsed
from psserver.service.rpc.registration import Registration, parsed
from psserver.service.rpc.shard import ShardRpc
from pswire.v1 import coordinator_pb2, shard_pb2

if TYPE_CHECKING:
    from psserver.service.rpc.registration import Method

    Methods = dict[str, Method]

COORDINATOR, SHARD = "pswire.v1.Coordinator", "pswire.v1.Shard"


def coordinator_methods(coordinator: CoordinatorRpc, rpc: Registration) -> "Methods":
    return {
        "Join": rpc.unary(coordinator.join, coordinator_pb2.JoinRequest, coordinator_pb2.JoinReply),
        "Session": rpc.bidirectional(
            coordinator.session,
            coordinator_pb2.SessionRequest,
            coordinator_pb2.SessionReply,
            # A field beyond its bound costs a worker that message, not its session.
            admit=parsed,
        ),
        "GatherEpoch": rpc.unary(
            coordinator.gather_epoch,
            coordinator_pb2.GatherEpochRequest,
            coordinator_pb2.GatherEpochReply,
        ),
        "Status": rpc.unary(coordinator.status, coordinator_pb2.StatusRequest, coordinator_pb2.StatusReply),
    }


def shard_methods(
    shard: ShardRpc, exchange: ExchangeRpc, follow: FollowRpc | None, rpc: Registration
) -> "Methods":
    """`follow`: None at the coordinator's own server."""
    followed = follow.follow if follow is not None else follow_nobody
    return {
        "Push": rpc.stream_in(shard.push, shard_pb2.PushReply),
        "Pull": rpc.stream_out(shard.pull, shard_pb2.PullRequest),
        "Exchange": rpc.raw(exchange.exchange),
        "Follow": rpc.bidirectional(followed, shard_pb2.FollowRequest, shard_pb2.FollowReply),
    }


def add_services(server: grpc.Server, services: "dict[str, Methods]") -> health.HealthServicer:
    """Register `services` by name, and beside them gRPC's own health and reflection; the former is returned."""
    for name, methods in services.items():
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, methods),))
    status = health.HealthServicer()
    # Of a server they use the two methods that it has.
    ours = cast(grpc.Server, Parsed(server))
    health_pb2_grpc.add_HealthServicer_to_server(status, ours)
    for name in ("", *services):
        status.set(name, health_pb2.HealthCheckResponse.SERVING)
    reflection.enable_server_reflection([*services, health.SERVICE_NAME, reflection.SERVICE_NAME], ours)
    return status
