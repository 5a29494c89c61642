"""The messages of this server to another one of a job with replicas.

A gRPC stream greets; what follows goes over a socket that the other server offers in its answer, or over the stream if
there is none. What was said since the loop's last turn, or since a message was sent, goes out as one. A broken stream
loses what it carried; the protocol repeats.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import grpc

from psserver.replication.messages import Append, Item, Message, merged
from psserver.service.net.connection import SocketConnection
from psserver.service.net.loop import settle
from psserver.service.net.sockets import SocketListener
from psserver.service.replicas import wire
from psserver.service.replicas.bodies import Bodies, Body, Lies
from pswire.addresses import Address
from pswire.exits import ExitCode
from pswire.logs.events import event
from pswire.security.credentials import Credentials
from pswire.security.proof import Caller, ProofError, server_named
from pswire.transport import socket_handshake as handshake
from pswire.transport.channels import CHANNEL_OPTIONS, Options
from pswire.transport.connecting import open_aio_channel
from pswire.transport.failures import CallEnding, may_pass, reason
from pswire.transport.framed_socket import Carrier, SocketError
from pswire.transport.proven import check_server
from pswire.v1 import shard_pb2

log = logging.getLogger("ps-server")

#: Seconds between two attempts to reach a server; that it may take to accept a connection to its port.
PAUSE: Final = 0.1
ACCEPTS: Final = 1.0
#: Bytes of items that one message brings, at most, unless it brings one alone.
MOST: Final = 64 << 20


class _Carried(NamedTuple):
    """An item of a log, and where the receiver reads it."""

    item: Item
    body: Body
    lies: Lies | None


class _About(NamedTuple):
    """A message about the log of a part."""

    part: int
    message: Message


# What waits to be sent.
Waiting = _Carried | _About | shard_pb2.ReplicatePart


class ServerLink:
    """The connection on which this server sends to another one. The loop's thread owns it.

    `greet`: returns the greeting; `address`: the other server's, as known now. `sockets`: None to use gRPC alone.
    """

    def __init__(
        self,
        server: int,
        greet: Callable[[], shard_pb2.Greeting],
        address: Callable[[], Address],
        bodies: Bodies,
        sockets: SocketListener | None = None,
    ) -> None:
        self.server, self.up = server, False
        self._greet, self._address, self._bodies, self._sockets = greet, address, bodies, sockets
        # Whether the other server reads what lies in memory that this one shares.
        self.reads = False
        self._waiting: list[Waiting] = []
        # Goes on with sending, if that rests; and whether it is about to be called.
        self._wake: Callable[[], None] = lambda: None
        self._wakes = False
        # Those who wait until what they said is written.
        self._writing: list[asyncio.Future[None]] = []
        # Items that this stream has carried, so that a repeated message does not carry them again.
        self._carried: set[Item] = set()
        self._last = False
        # Why the other server refused this one last, and the last error that nobody expects.
        self._refusal = self._failure = ""

    def send(self, message: Message, items: Iterable[tuple[Item, Body]], part: int) -> None:
        """Send a message about a part's log behind the items that it names. Nothing is kept for a server that is not
        there."""
        if not self.up:
            return
        message, items = self._bounded(message, list(items))
        before = self._waiting[-1] if self._waiting else None
        if isinstance(before, _About) and before.part == part:
            both = merged(before.message, message)
            if both is not None:
                message = both
                del self._waiting[-1]
        for item, body in items:
            if item not in self._carried:
                self._carried.add(item)
                # A body that is gone when it is read was written over, which the receiver notices by this.
                self._waiting.append(_Carried(item, body, self._bodies.lies(body) if self.reads else None))
        self._say(_About(part, message))

    def _bounded(
        self, message: Message, items: list[tuple[Item, Body]]
    ) -> tuple[Message, list[tuple[Item, Body]]]:
        """Return as much of a message that appends items as brings no more than MOST bytes, or one item. The other
        server asks for the rest."""
        if not isinstance(message, Append):
            return message, items
        total = 0
        for count, (item, body) in enumerate(items):
            nbytes = 0 if item in self._carried else len(body)
            if total and total + nbytes > MOST:
                return replace(message, items=message.items[:count]), items[:count]
            total += nbytes
        return message, items

    def put(self, part: shard_pb2.ReplicatePart) -> None:
        """Send something that may be lost."""
        if self.up:
            self._say(part)

    def _say(self, what: Waiting) -> None:
        self._waiting.append(what)
        if not self._wakes:
            self._wakes = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Send now, and not in the loop's next turn, what waits."""
        self._wakes = False
        if self._waiting:
            self._wake()

    async def carry(self, part: shard_pb2.ReplicatePart) -> bool:
        """Send one of many parts, and wait until it is on its way. Returns False if the stream broke."""
        if self.up:
            written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._writing.append(written)
            self.put(part)
            await written
        return self.up

    def forget(self, item: Item) -> None:
        self._carried.discard(item)

    def end(self, code: ExitCode, reason: str) -> None:
        """Send the last word."""
        self._last = True
        ending = shard_pb2.Shutdown(exit_code=int(code), reason=reason)
        self._say(shard_pb2.ReplicatePart(ending=ending))

    def finish(self) -> None:
        """End the stream behind what waits: another server may need just that answer to lead."""
        self._last = True
        self._wake()

    # The stream

    async def run(self, timeout: float, credentials: Credentials, broke: Callable[[int], None]) -> None:
        """Keep a stream open until the last word is sent. Only a cancellation of this task ends it before."""
        while not self._last:
            address = self._address()
            if address.port:
                try:
                    await self._once(address, timeout, credentials, broke)
                except (grpc.RpcError, SocketError) as error:
                    log.debug("no stream to server %d at %s: %s", self.server, address, error)
                except Exception as error:
                    self._failed(error)
            if not self._last:
                await asyncio.sleep(PAUSE)

    async def _once(
        self, address: Address, timeout: float, credentials: Credentials, broke: Callable[[int], None]
    ) -> None:
        """Open a stream, and send on it until it ends."""
        channel = open_aio_channel(str(address), _options(timeout), credentials)
        try:
            await self._stream(channel, address, credentials)
        finally:
            if self.up:
                self.up = False
                broke(self.server)
            self._waiting.clear()
            self._carried.clear()
            self._written(self._writing)
            await channel.close()

    def _failed(self, error: Exception) -> None:
        """Log an error that nobody expects, once: the next stream may end with it too."""
        found = f"{type(error).__name__}: {error}"
        if found != self._failure:
            self._failure = found
            log.error(
                "a stream to server %d failed, and is begun again",
                self.server,
                exc_info=error,
                extra=event("replica_stream_failed", server=self.server),
            )

    async def _stream(self, channel: grpc.aio.Channel, address: Address, credentials: Credentials) -> None:
        caller = Caller(credentials.job_secret, "/pswire.v1.Shard/Replicate", server_named(self.server))
        call: Any = channel.stream_stream(
            caller.method,
            request_serializer=caller.sealing(shard_pb2.ReplicateRequest.SerializeToString),
            response_deserializer=shard_pb2.ReplicateReply.FromString,
        )(metadata=caller.metadata)
        ending = CallEnding(call)
        try:
            await check_server(caller, call)
            first = shard_pb2.ReplicatePart(greeting=self._greet())
            await call.write(shard_pb2.ReplicateRequest(parts=[first]))
            reply = await call.read()
            if reply is grpc.aio.EOF:
                return
            connection = await self._dialled(reply.offer, address, credentials)
            self.up, self.reads, self._refusal = True, bool(reply.reads), ""
            if connection is None:
                await self._over_grpc(call)
            else:
                await self._over_socket(call, connection)
        except grpc.RpcError as raised:
            error = await ending.explained(raised)
            if not may_pass(error):
                self._refused(reason(error))
            raise error from raised
        except ProofError as error:
            self._refused(
                f"server {self.server} at {address}: {error}: another process is there, or not all servers have the "
                "same PS_JOB_SECRET"
            )
        finally:
            self._wake = lambda: None

    def _refused(self, why: str) -> None:
        """Say once why there is no stream."""
        if why != self._refusal:
            self._refusal = why
            log.error("%s", why, extra=event("replica_refused", server=self.server))

    async def _over_grpc(self, call: Any) -> None:
        filled = asyncio.Event()
        self._wake = filled.set

        async def rest() -> None:
            await filled.wait()
            filled.clear()

        async def send() -> None:
            await self._send(call.write, rest)
            await call.done_writing()

        # Nothing more is said to this server: reading is how it notices the end, and hears the reason.
        sending, reading = asyncio.ensure_future(send()), asyncio.ensure_future(call.read())
        try:
            await asyncio.wait({sending, reading}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done() and not isinstance(sending.exception(), grpc.RpcError):
                sending.result()
            await reading
        finally:
            # Cancelling the call itself would raise CancelledError here, as if this task were to end.
            for task in (sending, reading):
                task.cancel()
            await asyncio.gather(sending, reading, return_exceptions=True)

    async def _over_socket(self, call: Any, connection: SocketConnection) -> None:
        """Send over the connection, until that or the stream on which it was offered ends."""
        assert self._sockets is not None
        self._wake = connection.wake
        over: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

        async def write(request: shard_pb2.ReplicateRequest) -> None:
            await connection.send([request.SerializeToString()])

        self._sockets.run(connection, self._send(write, connection.rest), over.set_result)
        reading = asyncio.ensure_future(call.read())
        try:
            await asyncio.wait({reading, over}, return_when=asyncio.FIRST_COMPLETED)
            if self._last or reading.done():
                # The other server ends the stream when it has read the last word, or says why it refuses something.
                await reading
            elif isinstance(error := over.result(), Exception):
                raise error
        finally:
            connection.cut()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _dialled(
        self, offer: shard_pb2.Attached, address: Address, credentials: Credentials
    ) -> SocketConnection | None:
        if self._sockets is None or not offer.token:
            return None
        try:
            return await self._sockets.dial(partial(connected, offer, address.host, credentials))
        except OSError as error:
            # A SocketError, or the other server has closed it already.
            log.info(
                "what server %d is told goes over gRPC: %s",
                *(self.server, error),
                extra=event("transport_unavailable", server=str(address)),
            )
            return None

    async def _send(
        self,
        write: Callable[[shard_pb2.ReplicateRequest], Awaitable[Any]],
        rest: Callable[[], Awaitable[None]],
    ) -> None:
        """Send what waits, until the last word is sent. `rest`: waits until more may be there."""
        while self._waiting or not self._last:
            if not self._waiting:
                await rest()
                continue
            waiting, self._waiting = self._waiting, []
            writing = list(self._writing)
            for request in wire.requests(self._parts(waiting)):
                await write(request)
            self._written(writing)

    def _parts(self, waiting: list[Waiting]) -> Iterator[shard_pb2.ReplicatePart]:
        for each in waiting:
            if isinstance(each, _Carried):
                item, body, lies = each
                for piece in wire.pieces(item, body, lies):
                    if lies is None and not self._bodies.holds(item, body):
                        raise SocketError(f"server {self.server} was left out before it had an item")
                    yield piece
            elif isinstance(each, _About):
                yield shard_pb2.ReplicatePart(message=wire.encode(each.message, each.part))
            else:
                yield each

    def _written(self, writing: list[asyncio.Future[None]]) -> None:
        self._writing = [each for each in self._writing if each not in writing]
        for each in writing:
            settle(each)


def connected(offer: shard_pb2.Attached, host: str, credentials: Credentials) -> Carrier:
    """Connect to the socket that is offered. Raises SocketError."""
    if offer.socket:
        try:
            return handshake.connect_unix(offer.socket, offer.token)[0].detach()
        except SocketError:
            # Both may be in one process namespace and see other networks.
            if not offer.port:
                raise
    context = credentials.identity.line_context if credentials.encrypted else None
    return handshake.connect_tcp(host, offer.port, offer.token, context, ACCEPTS).detach()


def _options(timeout: float) -> Options:
    """Each attempt is one of its own: no pause delays it that other channels to the address have earned."""
    return [*CHANNEL_OPTIONS(timeout), ("grpc.use_local_subchannel_pool", 1)]
