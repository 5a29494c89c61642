"""gRPC's own services (health, reflection), registered so that bytes that do not parse are refused in a sentence.

Left to themselves they would be an internal error, with a traceback in the log for each call of a stranger.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError

from psserver.service.errors import Refused, invalid
from psserver.service.rpc.registration import abort

if TYPE_CHECKING:
    # Generic in the stubs only.
    Method = grpc.RpcMethodHandler[Any, Any]

NAMES = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


class Parsed:
    """Stands for `server` where a generated function registers methods."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: Sequence[object]) -> None:
        """The generated functions register every method twice; the other time it has a name."""

    def add_registered_method_handlers(self, service: str, methods: "Mapping[str, Method]") -> None:
        parsed = {name: _parsed(method) for name, method in methods.items()}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, parsed),))


def _parsed(method: Any) -> "Method":
    """The same method; its requests are parsed where a refusal can be an answer."""
    (name,) = (name for name in NAMES if getattr(method, name) is not None)
    serve = getattr(method, name)

    async def one(request: bytes, context: Any) -> Any:
        try:
            message = _message(method.request_deserializer, request)
        except Refused as refused:
            await abort(context, refused)
        return await serve(message, context)

    async def many(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
        messages = (_message(method.request_deserializer, request) async for request in requests)
        try:
            async for reply in serve(messages, context):
                yield reply
        except Refused as refused:
            await abort(context, refused)

    make = getattr(grpc, f"{name}_rpc_method_handler")
    handler: Method = make(many if method.request_streaming else one, None, method.response_serializer)
    return handler


def _message(parse: Callable[[bytes], Any], data: bytes) -> Any:
    try:
        return parse(data)
    except DecodeError as error:
        raise invalid(
            f"expected a message of this method, got {len(data)} bytes that do not parse"
        ) from error
