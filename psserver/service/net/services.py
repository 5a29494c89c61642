"""The gRPC services of a server: ours, and the question of gRPC's health service."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2

from psserver.service.errors import Code, RequestRefused
from psserver.service.net.registration import Call, MethodHandlers, parsed
from pswire.v1 import coordinator_pb2, shard_pb2

if TYPE_CHECKING:
    from psserver.service.net.registration import Method

    Methods = dict[str, Method]


COORDINATOR = coordinator_pb2.DESCRIPTOR.services_by_name["Coordinator"]
SHARD = shard_pb2.DESCRIPTOR.services_by_name["Shard"]
HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"]


def methods(service: ServiceDescriptor, rpc: MethodHandlers, *served: object) -> "Methods":
    """Make a handler for each method of a service, from the coroutine of its name in one of `served`.

    `GatherEpoch` is ``gather_epoch``. If there is a ``parse_gather_epoch``, it parses a unary method's request.
    Raises TypeError for a method without a coroutine.
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
            first = getattr(serve.__self__, f"parse_{name}", None)
            request = message_factory.GetMessageClass(method.input_type)
            found[method.name] = rpc.unary(path, serve, request, first)
    return found


def add_services(
    server: grpc.aio.Server, services: "dict[str, Methods]", rpc: MethodHandlers, serves: Callable[[], bool]
) -> None:
    """Register `services` by name, and the health of each. `serves`: whether the server does what it is there for."""

    async def check(call: Call) -> None:
        asked = parsed(health_pb2.HealthCheckRequest, await call.receive() or b"").service
        if asked and asked not in services:
            raise RequestRefused(Code.NOT_FOUND, "expected a service of this server")
        codes = health_pb2.HealthCheckResponse
        await call.reply(codes(status=codes.SERVING if serves() else codes.NOT_SERVING))

    health = {"Check": rpc.method(f"/{HEALTH.full_name}/Check", check)}
    for name, found in {**services, HEALTH.full_name: health}.items():
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, found),))
