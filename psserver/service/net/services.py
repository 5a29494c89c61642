"""The gRPC services of a server: ours, and gRPC's own health and reflection, as calls of the event loop."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from psserver.service.errors import Code, RequestRefused, invalid
from psserver.service.net.registration import Call, MethodHandlers
from pswire.v1 import coordinator_pb2, shard_pb2

if TYPE_CHECKING:
    from psserver.service.net.registration import Method

    Methods = dict[str, Method]


NAMES = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


class Parsed:
    """A stand-in for `server` to which generated functions add methods; `rpc` makes their handlers."""

    def __init__(self, server: grpc.aio.Server, rpc: MethodHandlers) -> None:
        self._server, self._rpc = server, rpc

    def add_generic_rpc_handlers(self, handlers: Sequence[object]) -> None:
        """Do nothing: generated functions register every method twice, and the other method has names."""

    def add_registered_method_handlers(self, service: str, methods: "Mapping[str, Method]") -> None:
        made = {
            name: self._rpc.method(f"/{service}/{name}", self._served(method))
            for name, method in methods.items()
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, made),))

    def _served(self, method: Any) -> Callable[[Call], Any]:
        (name,) = (name for name in NAMES if getattr(method, name) is not None)
        serve, parse = getattr(method, name), method.request_deserializer

        async def answer(call: Call) -> None:
            with call.watch.unproven(call.caller):
                if method.request_streaming:
                    given: Any = _messages(parse, call)
                else:
                    given = await anext(_messages(parse, call), None)
                    if given is None:
                        raise invalid("expected a request, got nothing")
                found = serve(given, ServicerContext(call))
                if hasattr(found, "__aiter__"):
                    async for reply in found:
                        await call.reply(reply)
                elif (reply := await found) is not None:
                    await call.reply(reply)

        return answer


class ServicerContext:
    """A call as gRPC's own services see it: they write replies themselves, or abort."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def write(self, reply: Message) -> None:
        await self._call.reply(reply)

    async def abort(self, code: grpc.StatusCode, details: str = "") -> None:
        raise RequestRefused(Code(code.value[0]), details)


async def _messages(parse: Callable[[bytes], Any], call: Call) -> AsyncIterator[Any]:
    while (data := await call.receive()) is not None:
        yield _message(parse, data)
        # Every message of a stranger must arrive in time.
        call.spoken = False


def _message(parse: Callable[[bytes], Any], data: bytes) -> Any:
    try:
        return parse(data)
    except DecodeError as error:
        raise invalid(
            f"expected a message of this method, got {len(data)} bytes that do not parse"
        ) from error


# gRPC's health service has no types.
Health = Any
COORDINATOR = coordinator_pb2.DESCRIPTOR.services_by_name["Coordinator"]
SHARD = shard_pb2.DESCRIPTOR.services_by_name["Shard"]


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


async def add_services(
    server: grpc.aio.Server, services: "dict[str, Methods]", rpc: MethodHandlers
) -> Health:
    """Register `services` by name, and gRPC's own health and reflection; return the health service."""
    for name, methods in services.items():
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, methods),))
    status = health.aio.HealthServicer()
    # Generated functions use only the two methods that `Parsed` has.
    ours = cast(grpc.Server, Parsed(server, rpc))
    health_pb2_grpc.add_HealthServicer_to_server(status, ours)
    for name in ("", *services):
        await status.set(name, health_pb2.HealthCheckResponse.SERVING)
    names = [*services, health.SERVICE_NAME, reflection.SERVICE_NAME]
    add: Any = reflection_pb2_grpc.add_ServerReflectionServicer_to_server
    add(reflection.aio.ReflectionServicer(names), ours)
    return status


async def tell_health(status: Health, serves: Callable[[], bool], every: float = 0.25) -> None:
    """Have the health service say, of the server as a whole, whether it `serves`, which is asked every `every`
    seconds."""
    told = True
    while True:
        if (found := serves()) != told:
            told, codes = found, health_pb2.HealthCheckResponse
            await status.set("", codes.SERVING if found else codes.NOT_SERVING)
        await asyncio.sleep(every)
