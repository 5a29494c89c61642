"""Registration of gRPC methods, so that every call gets one clear answer.

The generated registration answers a message that does not parse with an internal error. Here it is refused as
INVALID_ARGUMENT, with the name of the expected message. Calls are tasks of the event loop.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError, Message

from psserver.service.errors import Code, RequestRefused, invalid
from psserver.service.guard.authorization import Authorizer, address_of, unproven
from psserver.service.guard.calls import CallPeer, Watch
from psserver.service.net.loop import loop_time
from pswire.bounds import LARGEST, MESSAGE_BYTES, BoundError, check
from pswire.security.proof import LENGTH, Challenge, ProofError
from pswire.transport.framed_socket import Parts

if TYPE_CHECKING:
    # Generic in the stubs only.
    Method = grpc.RpcMethodHandler[Any, Any]
    Context = grpc.aio.ServicerContext[Any, Any]

MESSAGE_LIMIT = 2000
# Bytes from which an answer may stay with the transport until its peer reads.
LARGE_MESSAGE = 2**16
_STATUS = {status.value[0]: status for status in grpc.StatusCode}


class _NoLostPeers(logging.Filter):
    """A filter for gRPC's log: it is no error that a call is cancelled before its method begins or at the server's end,
    or that its peer has gone before its status was sent."""

    def filter(self, record: logging.LogRecord) -> bool:
        kind = record.exc_info[0] if record.exc_info else None
        if kind is not None and (
            issubclass(kind, asyncio.CancelledError) or kind.__name__ == "ExecuteBatchError"
        ):
            return False
        return "due to server stop" not in str(record.msg)


_FILTER = _NoLostPeers()


def parsed(kind: type[Message], data: bytes) -> Any:
    """Parse a message of that kind. Raises Refused for bytes that do not parse."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise invalid(
            f"expected a {kind.DESCRIPTOR.full_name}, got {len(data)} bytes that do not parse"
        ) from error


def bounded(message: Any) -> Any:
    """Return the message. Raises Refused if a field is beyond its bound."""
    try:
        check(message)
    except BoundError as error:
        raise invalid(str(error)) from error
    return message


async def abort(context: "Context", refused: RequestRefused) -> None:
    """End the call with that status. gRPC keeps the exception that it raises here in a cycle with the frames that it
    passes, so it must be raised behind the method, where no request is at hand."""
    await context.abort(_STATUS[refused.code], clipped(refused.message))


def clipped(message: str) -> str:
    """Shorten `message`, which may quote what a peer sent, so that it arrives.

    It travels as metadata, of which gRPC takes 8 KiB; each byte that is not ASCII takes three there.
    """
    text = message.encode("utf-8", "replace")
    if len(text) <= MESSAGE_LIMIT:
        return message
    return text[:MESSAGE_LIMIT].decode("utf-8", "ignore") + " ..."


First = Callable[[bytes, "Call"], Any]
"""Parses a request where parsing it, or holding its fields against their bounds, can cost much. Raises Refused."""


@dataclass(slots=True)
class Call:
    """A call as its method sees it: messages each way, in bytes. The call's task owns it.

    `patience`: seconds that the peer may take to read that many bytes. `most`: bytes of one message, at most.
    """

    context: "Context"
    caller: CallPeer
    watch: Watch
    patience: Callable[[int], float]
    most: int = MESSAGE_BYTES
    spoken: bool = False
    # What the first message has to prove.
    challenge: Challenge | None = None

    async def receive(self, most: int | None = None) -> bytes | None:
        """Return the next message, or None at the end of the stream. The first one must arrive in time.

        Raises Refused for one of more than `most` bytes; None: as many as the method takes.
        """
        if self.spoken:
            return await self._read(most)
        with self.watch.first_message(self.caller):
            message = await self._read(most)
        self.spoken = True
        return message

    async def _read(self, most: int | None = None) -> bytes | None:
        message = await self.context.read()
        if message is grpc.aio.EOF:
            return None
        data: bytes = message
        challenge, self.challenge = self.challenge, None
        most = (most or self.most) + (0 if challenge is None else LENGTH)
        if len(data) > most:
            raise invalid(f"expected a message of at most {most} bytes, got {len(data)}")
        if challenge is None:
            return data
        try:
            return challenge.opened(data)
        except ProofError as error:
            raise unproven(challenge.method) from error

    async def only(self, kind: type[Message], first: "First | None" = None) -> Any:
        """Return the one request of a unary method. Raises Refused."""
        with self.watch.first_message(self.caller):
            message = await self._read()
        if message is None:
            raise invalid(f"expected a {kind.DESCRIPTOR.full_name}, got nothing")
        return bounded(parsed(kind, message) if first is None else first(message, self))

    async def receive_many(self, take: Callable[[bytes], bool]) -> None:
        """Do nothing: gRPC's own threads receive messages one by one."""

    async def send_many(self, messages: Iterator[Parts]) -> None:
        """Do nothing: gRPC's own threads send messages one by one."""

    async def send(self, parts: Parts) -> None:
        """Send one message, in pieces. The peer must read it in time, because an unread message holds memory."""
        message = b"".join(parts)
        self.caller.deadline = loop_time() + self.patience(len(message))
        if len(message) < LARGE_MESSAGE:
            await self.context.write(message)
        else:
            await self._send_large(message)
        self.caller.deadline = None

    async def _send_large(self, message: bytes) -> None:
        self.caller.writing = writing = asyncio.ensure_future(self.context.write(message))
        await asyncio.shield(writing)
        self.caller.writing = None

    async def reply(self, message: Message) -> None:
        await self.send((message.SerializeToString(),))

    def when_over(self, function: Callable[[], None]) -> None:
        """Call `function` once this call has ended and its status has been sent."""
        # The stubs demand a class here, but any function will do.
        self.context.add_done_callback(lambda _: function())  # type: ignore[arg-type]


class MethodHandlers:
    """Makes handlers of methods. `watch` enforces the deadlines of every call, `patience` is that of `Call`, and
    `authorizer` decides who may call.

    Every method is registered as a stream of messages, also those with one request: otherwise gRPC would wait for a
    request that never comes, and answer bytes that do not parse with an internal error.
    """

    def __init__(
        self, watch: Watch, patience: Callable[[int], float], authorizer: Authorizer | None = None
    ) -> None:
        """Watch the streams. `authorizer`: None admits everybody."""
        self._watch = watch
        self._patience = patience
        self._authorizer = authorizer or Authorizer()
        logging.getLogger("grpc._cython.cygrpc").addFilter(_FILTER)

    def method(self, path: str, function: Callable[[Call], Awaitable[None]]) -> "Method":
        """Make the handler of `path` ("/service/method"). `function` receives and sends raw messages.

        A refusal ends the call with its reason. An unauthorized caller is refused before anything is read.
        """

        async def serve(_: object, context: "Context") -> None:
            try:
                refusal = await self._called(path, function, context)
                if refusal is not None:
                    await abort(context, refusal)
            except grpc.aio.InternalError as error:
                # The transport accepts nothing more for this call. gRPC learns a moment later that the peer has
                # gone, and would log a traceback.
                raise asyncio.CancelledError(f"the peer has gone: {error}") from error

        return grpc.stream_stream_rpc_method_handler(serve, None, None)

    async def _called(
        self, path: str, function: Callable[[Call], Awaitable[None]], context: "Context"
    ) -> RequestRefused | None:
        """Serve a call; return the refusal that it is to end with, if any, which keeps nothing of the call."""
        task = asyncio.current_task()
        assert task is not None
        try:
            peer = self._authorizer.admit(path, context)
        except RequestRefused as refused:
            return refused.afresh()
        calling = CallPeer(task.cancel, peer=peer, address=address_of(context.peer()))
        with self._watch.watching(calling) as caller:
            most = LARGEST.get(path, MESSAGE_BYTES)
            call = Call(context, caller, self._watch, self._patience, most)
            return await self._served(path, function, call, task)

    async def _served(
        self,
        path: str,
        function: Callable[[Call], Awaitable[None]],
        call: Call,
        task: "asyncio.Task[Any]",
    ) -> RequestRefused | None:
        try:
            call.challenge = self._authorizer.challenge(path, call.context)
            if call.challenge is not None:
                await call.context.send_initial_metadata(call.challenge.answer)
            await function(call)
        except RequestRefused as refused:
            return refused.afresh()
        except asyncio.CancelledError:
            if call.caller.writing is not None or not call.caller.cut_off:
                # The peer has gone or does not read, so it would not get the reason either. A call that ends
                # without one makes the transport free what it holds for it.
                raise
            task.uncancel()
            return RequestRefused(Code.CANCELLED, "the server ended this call")
        return None

    def unary(
        self,
        path: str,
        function: Callable[[Any, Call], Awaitable[Message]],
        request: type[Message],
        first: First | None = None,
    ) -> "Method":
        """Make the handler of a method with one message each way. `first` parses the request; None: as any other."""

        async def serve(call: Call) -> None:
            await call.reply(await function(await call.only(request, first), call))

        return self.method(path, serve)
