"""The methods of a server's gRPC services."""

from typing import TYPE_CHECKING, Any, cast

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from psserver.service.rpc.coordinator import CoordinatorRpc
from psserver.service.rpc.exchange import ExchangeRpc
from psserver.service.rpc.follow import FollowRpc, follow_nobody
from psserver.service.rpc.registration import Registration
from psserver.service.rpc.shard import ShardRpc
from psserver.service.rpc.standard_services import Parsed
from pswire.v1 import coordinator_pb2

if TYPE_CHECKING:
    from psserver.service.rpc.registration import Method

    Methods = dict[str, Method]

# It has no types.
Health = Any

COORDINATOR, SHARD = "pswire.v1.Coordinator", "pswire.v1.Shard"


def coordinator_methods(coordinator: CoordinatorRpc, rpc: Registration) -> "Methods":
    at = f"/{COORDINATOR}/"
    return {
        "Join": rpc.unary(
            f"{at}Join", coordinator.join, coordinator_pb2.JoinRequest, coordinator.weigh_model
        ),
        "Session": rpc.method(f"{at}Session", coordinator.sessions.serve),
        "GatherEpoch": rpc.unary(
            f"{at}GatherEpoch", coordinator.gather_epoch, coordinator_pb2.GatherEpochRequest
        ),
        "Locate": rpc.unary(f"{at}Locate", coordinator.locate, coordinator_pb2.LocateRequest),
        "Status": rpc.unary(f"{at}Status", coordinator.status, coordinator_pb2.StatusRequest),
    }


def shard_methods(
    shard: ShardRpc, exchange: ExchangeRpc, follow: FollowRpc | None, rpc: Registration
) -> "Methods":
    """`follow`: None at the coordinator's own server."""
    at = f"/{SHARD}/"
    return {
        "Push": rpc.method(f"{at}Push", shard.push),
        "Pull": rpc.method(f"{at}Pull", shard.pull),
        "Exchange": rpc.method(f"{at}Exchange", exchange.exchange),
        "Follow": rpc.method(f"{at}Follow", follow.follow if follow is not None else follow_nobody),
    }


async def add_services(server: grpc.aio.Server, services: "dict[str, Methods]", rpc: Registration) -> Health:
    """Register `services` by name, and beside them gRPC's own health and reflection; the former is returned."""
    for name, methods in services.items():
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, methods),))
    status = health.aio.HealthServicer()
    # Of a server they use the two methods that it has.
    ours = cast(grpc.Server, Parsed(server, rpc))
    health_pb2_grpc.add_HealthServicer_to_server(status, ours)
    for name in ("", *services):
        await status.set(name, health_pb2.HealthCheckResponse.SERVING)
    names = [*services, health.SERVICE_NAME, reflection.SERVICE_NAME]
    add: Any = reflection_pb2_grpc.add_ServerReflectionServicer_to_server
    add(reflection.aio.ReflectionServicer(names), ours)
    return status
