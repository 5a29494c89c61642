"""gRPC's own services (health, reflection), held to the same limits as ours.

Left to themselves they would wait for a request that never comes, in memory that only the transport sees, and bytes
that do not parse would be an internal error, with a traceback in the log for each call of a stranger.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError, Message

from psserver.service.errors import invalid
from psserver.service.limits.calls import ConcurrentCalls
from psserver.service.limits.table import FOREIGN
from psserver.service.rpc.registration import Call, Registration

if TYPE_CHECKING:
    # Generic in the stubs only.
    Method = grpc.RpcMethodHandler[Any, Any]

NAMES = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


class Parsed:
    """Stands for `server` where a generated function registers methods; `rpc` makes them."""

    def __init__(self, server: grpc.aio.Server, rpc: Registration) -> None:
        self._server, self._rpc = server, rpc
        self._few = ConcurrentCalls(int(FOREIGN.value))

    def add_generic_rpc_handlers(self, handlers: Sequence[object]) -> None:
        """The generated functions register every method twice; the other time it has a name."""

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
            with self._few.one(call.caller):
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
    """A call as those services see it: they write replies themselves, or abort."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def write(self, reply: Message) -> None:
        await self._call.reply(reply)

    async def abort(self, code: grpc.StatusCode, details: str = "") -> None:
        await self._call.context.abort(code, details)


async def _messages(parse: Callable[[bytes], Any], call: Call) -> AsyncIterator[Any]:
    while (data := await call.receive()) is not None:
        yield _message(parse, data)
        # Of strangers, every message must come in time.
        call.spoken = False


def _message(parse: Callable[[bytes], Any], data: bytes) -> Any:
    try:
        return parse(data)
    except DecodeError as error:
        raise invalid(
            f"expected a message of this method, got {len(data)} bytes that do not parse"
        ) from error
