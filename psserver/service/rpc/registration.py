"""Registering methods so that whatever arrives gets one clear answer.

The generated registration lets a message that does not parse surface as an
internal error. Here it is refused as INVALID_ARGUMENT with the name of the
message that was expected.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import grpc
from google.protobuf.message import DecodeError, Message

from psserver.service.errors import Refused, invalid
from pswire.bounds import BoundError, check
from pswire.transport.framed_socket import Parts

if TYPE_CHECKING:
    # Generic in the stubs only.
    Method = grpc.RpcMethodHandler[Any, Any]


class Caller(Protocol):
    """The peer that waits for an answer; a gRPC context is one."""

    def is_active(self) -> bool: ...

    def cancel(self) -> object:
        """From any thread: the call is over."""
        ...


MESSAGE_LIMIT = 2000


@dataclass(frozen=True, slots=True)
class Malformed:
    expected: str
    length: int


def parse(kind: type[Message]) -> Callable[[bytes], Any]:
    """A deserializer for `kind` that never raises (an exception there would hide its cause)."""

    def deserialize(data: bytes) -> Any:
        try:
            return kind.FromString(data)
        except DecodeError:
            return Malformed(kind.DESCRIPTOR.full_name, len(data))

    return deserialize


def parsed(request: Any) -> Any:
    """The request itself; raises Refused when it is no message of the expected kind."""
    if isinstance(request, Malformed):
        raise invalid(f"expected a {request.expected}, got {request.length} bytes that do not parse")
    return request


def checked(request: Any) -> Any:
    """The request itself; raises Refused when it is no message of the expected kind, or a field is beyond its bound."""
    return bounded(parsed(request))


def bounded(message: Any) -> Any:
    """The message itself; raises Refused for a field that is beyond its bound."""
    try:
        check(message)
    except BoundError as error:
        raise invalid(str(error)) from error
    return message


def abort(context: grpc.ServicerContext, refused: Refused) -> NoReturn:
    context.abort(refused.code, clipped(refused.message))


def clipped(message: str) -> str:
    """`message`, which may quote whatever a peer sent, short enough to arrive.

    It travels as metadata, of which gRPC takes 8 KiB; what is not ASCII is
    written there in three bytes for one.
    """
    text = message.encode("utf-8", "replace")
    if len(text) <= MESSAGE_LIMIT:
        return message
    return text[:MESSAGE_LIMIT].decode("utf-8", "ignore") + " ..."


def unary(
    function: Callable[[Any, grpc.ServicerContext], Any], request: type[Message], reply: type[Message]
) -> "Method":
    """One message in, one out."""

    def serve(message: Any, context: grpc.ServicerContext) -> Any:
        try:
            return function(checked(message), context)
        except Refused as refused:
            abort(context, refused)

    return grpc.unary_unary_rpc_method_handler(serve, parse(request), reply.SerializeToString)


def bidirectional(
    function: Callable[[Iterator[Any], grpc.ServicerContext], Iterable[Any]],
    request: type[Message],
    reply: type[Message],
    admit: Callable[[Any], Any] = checked,
) -> "Method":
    """A stream each way. `admit` is asked for each message; what it raises ends the stream."""

    def serve(messages: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        try:
            yield from function(map(admit, messages), context)
        except Refused as refused:
            abort(context, refused)

    return grpc.stream_stream_rpc_method_handler(serve, parse(request), reply.SerializeToString)


def stream_in(
    function: Callable[[Iterator[bytes], grpc.ServicerContext], Any], reply: type[Message]
) -> "Method":
    """A stream of raw messages in, one message out; `function` parses by itself."""

    def serve(messages: Iterator[bytes], context: grpc.ServicerContext) -> Any:
        try:
            return function(messages, context)
        except Refused as refused:
            abort(context, refused)

    return grpc.stream_unary_rpc_method_handler(serve, None, reply.SerializeToString)


def stream_out(
    function: Callable[[Any, grpc.ServicerContext], Iterable[bytes]], request: type[Message]
) -> "Method":
    """One message in, a stream of raw messages out."""

    def serve(message: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        try:
            yield from function(checked(message), context)
        except Refused as refused:
            abort(context, refused)

    return grpc.unary_stream_rpc_method_handler(serve, parse(request), None)


def raw(function: Callable[[Iterator[bytes], grpc.ServicerContext], Iterable[Parts]]) -> "Method":
    """A stream of raw messages each way; `function` parses by itself, and answers in pieces of messages."""

    def serve(messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Parts]:
        try:
            yield from function(messages, context)
        except Refused as refused:
            abort(context, refused)

    return grpc.stream_stream_rpc_method_handler(serve, None, b"".join)
