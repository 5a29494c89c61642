"""Registering methods so that whatever arrives gets one clear answer.

The generated registration lets a message that does not parse surface as an
internal error. Here it is refused as INVALID_ARGUMENT with the name of the
message that was expected.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
from google.protobuf.message import DecodeError, Message

from psserver.service.errors import Refused, invalid
from psserver.service.limits.watch import Caller, Watch, sent
from pswire.bounds import BoundError, check
from pswire.transport.framed_socket import Parts

if TYPE_CHECKING:
    # Generic in the stubs only.
    Method = grpc.RpcMethodHandler[Any, Any]


def start(thread: threading.Thread, what: str) -> None:
    """Raises Refused when the system gives no thread."""
    try:
        thread.start()
    except RuntimeError as error:
        raise Refused(
            grpc.StatusCode.RESOURCE_EXHAUSTED, f"the server has no thread for {what}: {error}"
        ) from error


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


class Registration:
    """Makes handlers of methods. `watch` holds every call to its deadlines; `patience`: seconds that a peer may take
    to read so many bytes.

    Every method takes a stream of messages, those with one request, too: gRPC would let a thread wait for a request
    that never comes.
    """

    def __init__(self, watch: Watch, patience: Callable[[int], float]) -> None:
        self._watch = watch
        self._patience = patience

    def _caller(self, context: grpc.ServicerContext) -> Caller:
        return Caller(context.is_active, context.cancel)

    def unary(
        self, function: Callable[[Any, Caller], Any], request: type[Message], reply: type[Message]
    ) -> "Method":
        """One message in, one out."""

        def serve(messages: Iterator[Any], context: grpc.ServicerContext) -> Any:
            with self._watch.watching(self._caller(context)) as caller:
                try:
                    return function(checked(self._only(messages, caller, request)), caller)
                except Refused as refused:
                    abort(context, refused)

        return grpc.stream_unary_rpc_method_handler(serve, parse(request), reply.SerializeToString)

    def _only(self, messages: Iterator[Any], caller: Caller, request: type[Message]) -> Any:
        first = next(self._watch.heard(messages, caller), None)
        if first is None:
            raise invalid(f"expected a {request.DESCRIPTOR.full_name}, got nothing")
        return first

    def bidirectional(
        self,
        function: Callable[[Iterator[Any], Caller], Iterable[Any]],
        request: type[Message],
        reply: type[Message],
        admit: Callable[[Any], Any] = checked,
    ) -> "Method":
        """A stream each way. `admit` is asked for each message; what it raises ends the stream."""

        def serve(messages: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            with self._watch.watching(self._caller(context)) as caller:
                try:
                    replies = function(map(admit, self._watch.heard(messages, caller)), caller)
                    yield from sent(replies, caller, lambda made: self._patience(made.ByteSize()))
                except Refused as refused:
                    abort(context, refused)

        return grpc.stream_stream_rpc_method_handler(serve, parse(request), reply.SerializeToString)

    def stream_in(self, function: Callable[[Iterator[bytes], Caller], Any], reply: type[Message]) -> "Method":
        """A stream of raw messages in, one message out; `function` parses by itself."""

        def serve(messages: Iterator[bytes], context: grpc.ServicerContext) -> Any:
            with self._watch.watching(self._caller(context)) as caller:
                try:
                    return function(self._watch.heard(messages, caller), caller)
                except Refused as refused:
                    abort(context, refused)

        return grpc.stream_unary_rpc_method_handler(serve, None, reply.SerializeToString)

    def stream_out(
        self, function: Callable[[Any, Caller], Iterable[bytes]], request: type[Message]
    ) -> "Method":
        """One message in, a stream of raw messages out."""

        def serve(messages: Iterator[Any], context: grpc.ServicerContext) -> Iterator[bytes]:
            with self._watch.watching(self._caller(context)) as caller:
                try:
                    replies = function(checked(self._only(messages, caller, request)), caller)
                    yield from sent(replies, caller, lambda made: self._patience(len(made)))
                except Refused as refused:
                    abort(context, refused)

        return grpc.stream_stream_rpc_method_handler(serve, parse(request), None)

    def raw(self, function: Callable[[Iterator[bytes], Caller], Iterable[Parts]]) -> "Method":
        """A stream of raw messages each way; `function` parses by itself, and answers in pieces of messages."""

        def serve(messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Parts]:
            with self._watch.watching(self._caller(context)) as caller:
                try:
                    replies = function(self._watch.heard(messages, caller), caller)
                    yield from sent(replies, caller, lambda made: self._patience(sum(map(len, made))))
                except Refused as refused:
                    abort(context, refused)

        return grpc.stream_stream_rpc_method_handler(serve, None, b"".join)
