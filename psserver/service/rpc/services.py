"""The methods of a server's gRPC services."""

import re
from typing import TYPE_CHECKING, Any, cast

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from psserver.service.rpc.registration import Registration
from psserver.service.rpc.standard_services import Parsed
from pswire.v1 import coordinator_pb2, shard_pb2

if TYPE_CHECKING:
    from psserver.service.rpc.registration import Method

    Methods = dict[str, Method]

# It has no types.
Health = Any

COORDINATOR = coordinator_pb2.DESCRIPTOR.services_by_name["Coordinator"]
SHARD = shard_pb2.DESCRIPTOR.services_by_name["Shard"]


def methods(service: ServiceDescriptor, rpc: Registration, *served: object) -> "Methods":
    """Make a handler for each method of a service, of the coroutine of its name that one of `served` has.

    `GatherEpoch` is ``gather_epoch``; what weighs a unary method's request first is ``weigh_gather_epoch``, where there
    is one. Raises TypeError for a method that nobody serves.
    """
    found = {}
    for method in service.methods:
        path, name = (
            f"/{service.full_name}/{method.name}",
            re.sub(r"(?<!^)([A-Z])", r"_\1", method.name).lower(),
        )
        serve = next((getattr(each, name) for each in served if hasattr(each, name)), None)
        if serve is None:
            raise TypeError(
                f"{path}: expected a coroutine {name!r} of {', '.join(type(s).__name__ for s in served)}"
            )
        if method.client_streaming or method.server_streaming:
            found[method.name] = rpc.method(path, serve)
        else:
            weigh = getattr(serve.__self__, f"weigh_{name}", None)
            request = message_factory.GetMessageClass(method.input_type)
            found[method.name] = rpc.unary(path, serve, request, weigh)
    return found


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
