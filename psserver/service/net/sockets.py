"""The port for payloads: accepts connections, and serves those that prove themselves with their first frame."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, NamedTuple

from psserver.service.errors import Code, RequestRefused, exhausted
from psserver.service.guard.authorization import Authorizer
from psserver.service.guard.calls import Watch
from psserver.service.guard.limits import CONNECTIONS
from psserver.service.guard.pace import KeyedPace
from psserver.service.net import bulk
from psserver.service.net.connection import SocketConnection
from psserver.service.net.registration import clipped
from psserver.service.net.tls_connection import TlsConnection
from psserver.service.runtime import Runtime
from pswire.logs.events import event
from pswire.security.names import IdentityError
from pswire.transport import framed_socket
from pswire.transport import socket_handshake as handshake
from pswire.transport.framed_socket import FRAME_BYTES, Carrier, SocketError

log = logging.getLogger("ps-server")

# Seconds between attempts to accept when the system refuses.
PAUSE = 0.2
# Connections accepted in one turn of the loop.
AT_ONCE = 64
# Seconds between two log lines about failed handshakes.
MINUTE = 60.0
# Seconds that a refused peer may take to close.
REFUSED_CLOSES = 10.0


# The methods that connections serve: of members, and of other servers.
EXCHANGE: Final = "/pswire.v1.Shard/Exchange"
REPLICATE: Final = "/pswire.v1.Shard/Replicate"
# Bytes of a first frame: the claim of a member, or what another server was told.
FIRST_BYTES: Final = 4096
# Seconds between two looks for connections of those who may not have them any more.
LOOK_EVERY: Final = 1.0


Serve = Callable[[SocketConnection], Awaitable[None]]


class Guest(NamedTuple):
    """Whom a connection is of. `serve`: serves it; `over`: whether it must end, because a membership has ended."""

    serve: Serve
    over: Callable[[], bool] = lambda: False


# Returns the guest that the first frame proves. Raises Refused for anybody else.
Admit = Callable[[bytes, SocketConnection], Awaitable[Guest]]


class SocketListener:
    """The listening sockets for payloads, opened on first use of `name` or `port`. Close it at the end.

    `bind`: the address of the port; `port`: 0 for a free one. The loop's thread owns it.
    """

    def __init__(
        self,
        admit: Admit,
        runtime: Runtime,
        bind: str = "127.0.0.1",
        port: int = 0,
        watch: Watch | None = None,
        patience: Callable[[int], float] = lambda nbytes: 3600.0,
        contexts: Callable[[], ssl.SSLContext] | None = None,
        authorizer: Authorizer | None = None,
    ) -> None:
        """`watch`, `patience`: as for `psserver.service.net.registration.MethodHandlers`. `contexts`: makes the TLS
        context of a connection from another machine; None: no TLS. `authorizer`: says what a certificate may do,
        and counts failed handshakes under "handshake"."""
        self._admit = admit
        self._runtime = runtime
        self._watch, self._patience = watch or Watch(), patience
        self._bind, self._wanted = bind, port
        self._contexts = contexts
        self._buffers = bulk.Buffers()
        self._threads = runtime.pool(bulk.THREADS, "payload")
        self._name: str | None = None
        self._port: int | None = None
        self._listening: list[socket.socket] = []
        # By the first frame, which is good for one connection: what this server has told another one to send.
        self.expected: dict[bytes, Serve] = {}
        # All connections, and those that have proven themselves.
        self._accepted: set[SocketConnection] = set()
        self._connections: dict[SocketConnection, Guest] = {}
        self._looking: asyncio.TimerHandle | None = None
        self._authorizer = authorizer or Authorizer()
        self._handshake_lines = KeyedPace(1 / MINUTE, 1)
        # A warning that nothing can be accepted was logged, and nothing was accepted since.
        self._pausing = False
        self._ending = False

    @property
    def name(self) -> str:
        """Name of the Unix socket; empty if the system offers none."""
        if self._name is None and not self._ending:
            self._name = self._listen_unix()
        return self._name or ""

    @property
    def port(self) -> int:
        """TCP port for workers of other machines; 0 if none can be opened."""
        if self._port is None and not self._ending:
            try:
                self._port = self._listen_tcp()
            except SocketError as error:
                log.warning("payloads of workers use gRPC: %s", error, extra=event("data_port_refused"))
                self._port = 0
        return self._port or 0

    @property
    def connections(self) -> list[SocketConnection]:
        """Connections that have proven themselves."""
        return list(self._connections)

    @property
    def unauthenticated(self) -> int:
        """Number of connections that have not proven themselves yet."""
        return len(self._accepted) - len(self._connections)

    def open_port(self) -> None:
        """Open the port now rather than for the first worker. Raises SocketError."""
        self._port = self._listen_tcp()

    async def dial(self, connect: Callable[[], Carrier]) -> SocketConnection:
        """Return this server's end of a connection that it makes itself; `connect` may block. Raises as that, and
        OSError if the other end has closed it already."""
        connected = await self._threads.on_pool(connect)
        try:
            return SocketConnection(
                self._runtime.loop, connected, self._buffers, self._threads, "", self._patience
            )
        except OSError:
            connected.close()
            raise

    def run(
        self,
        connection: SocketConnection,
        task: Coroutine[Any, Any, object],
        ended: Callable[[BaseException | None], object],
    ) -> None:
        """Run the task of a connection that this server has made, and enforce its deadlines."""

        async def watched() -> None:
            with self._watch.watching(connection.caller):
                await task

        connection.run(watched(), ended)

    def begin(self) -> None:
        """Start the threads now; later the system may refuse. Raises RuntimeError."""
        self._threads.begin()

    def end(self) -> None:
        """Stop the threads, after the loop has ended."""
        self._threads.close()

    # Accepting

    def _listen_unix(self) -> str:
        try:
            listening, name = self._runtime.listen_unix()
        except SocketError as error:
            fields = event("local_socket_refused")
            log.info("workers of this machine send their requests over gRPC: %s", error, extra=fields)
            return ""
        self._start(listening)
        return name

    def _listen_tcp(self) -> int:
        listening = self._runtime.listen_tcp(self._bind, self._wanted)
        self._start(listening)
        port = int(listening.getsockname()[1])
        log.info("listening for workers' payloads on port %d", port, extra=event("data_port", port=port))
        return port

    def _start(self, listening: socket.socket) -> None:
        listening.setblocking(False)
        self._listening.append(listening)
        self._runtime.loop.add_reader(listening, self.accept, listening)
        if self._looking is None:
            self._look()

    def _look(self) -> None:
        """Cut the connections of memberships that have ended: a worker that is stopped closes none."""
        for connection, guest in list(self._connections.items()):
            if guest.over():
                connection.cut()
        self._looking = self._runtime.loop.call_later(LOOK_EVERY, self._look)

    def accept(self, listening: socket.socket) -> None:
        """Accept waiting connections, a limited number per turn."""
        for _ in range(AT_ONCE):
            try:
                connected, place = listening.accept()
            except BlockingIOError:
                # Everybody who waited is in.
                self._pausing = False
                return
            except (InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(listening, error)
                return
            self._begin(connected, place[0] if isinstance(place, tuple) else "")

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        """Stop accepting for a moment, for example when out of descriptors: `accept` would fail again at once."""
        if not self._pausing:
            why = error.strerror or error
            log.warning("a connection cannot be accepted yet: %s", why, extra=event("accept_failed"))
        self._pausing = True
        self._runtime.loop.remove_reader(listening)
        self._runtime.loop.call_later(PAUSE, self._resume, listening)

    def _resume(self, listening: socket.socket) -> None:
        if not self._ending:
            self._runtime.loop.add_reader(listening, self.accept, listening)

    def _begin(self, connected: socket.socket, address: str) -> None:
        try:
            if connected.family == socket.AF_UNIX:
                handshake.check_same_user(connected)
            connection = self._connection(connected, address)
        except (OSError, IdentityError) as error:
            self._refuse(address or "this machine", error)
            connected.close()
            return
        self._accepted.add(connection)
        connection.run(self._run(connection), lambda error: self._ended(connection, error))

    def _connection(self, connected: socket.socket, address: str) -> SocketConnection:
        loop, rest = self._runtime.loop, (self._buffers, self._threads, address, self._patience)
        if connected.family == socket.AF_UNIX or self._contexts is None:
            return SocketConnection(loop, connected, *rest)
        return TlsConnection(loop, connected, self._contexts(), *rest)

    # One connection

    async def _run(self, connection: SocketConnection) -> None:
        # A connection counts as a stranger's until a member's claim is proven, so that what it sends gains nothing.
        with self._watch.watching(connection.caller), self._watch.unproven(connection.caller):
            refusal = await self._served(connection)
            if refusal is not None:
                await connection.send([clipped(refusal.message).encode()], refusal.code)
                await connection.drain(REFUSED_CLOSES)

    async def _served(self, connection: SocketConnection) -> RequestRefused | None:
        """Serve the connection to its end; return the refusal that ends it, if any."""
        try:
            guest = await self._proven(connection)
            if guest is not None:
                await guest.serve(connection)
        except RequestRefused as refused:
            return refused.afresh()
        except SocketError:
            raise
        except Exception as error:
            # gRPC treats an exception of a method the same way.
            log.exception("an exchange failed", extra=event("exchange_failed"))
            return RequestRefused(Code.UNKNOWN, f"{type(error).__name__}: {error}")
        return None

    async def _proven(self, connection: SocketConnection) -> Guest | None:
        """Return the guest that the first frame proves; None if none comes. Nothing else is read before it.

        Raises Refused for anybody else.
        """
        connection.expect(most=FIRST_BYTES)
        caller = connection.caller
        with caller.within(framed_socket.HANDSHAKE_TIMEOUT):
            if isinstance(connection, TlsConnection):
                try:
                    await connection.handshake()
                except SocketError as error:
                    self._refuse(caller.address, error)
                    return None
            first = await connection.receive()
        if first is None:
            return None
        serve = self.expected.pop(bytes(first), None)
        if isinstance(connection, TlsConnection):
            self._authorizer.admit(EXCHANGE if serve is None else REPLICATE, connection)
        guest = Guest(serve) if serve is not None else await self._admit(bytes(first), connection)
        self._watch.proven(caller)
        if len(self._connections) >= CONNECTIONS:
            raise exhausted("the server has no room for another connection")
        connection.expect(most=FRAME_BYTES)
        self._connections[connection] = guest
        return guest

    def _refuse(self, address: str, error: Exception) -> None:
        """Count a refused connection; log one per minute."""
        self._authorizer.refused["handshake"] += 1
        if self._handshake_lines.take(""):
            log.warning(
                "a connection of %s to the data port was refused: %s; %d in all",
                *(address, error, self._authorizer.refused["handshake"]),
                extra=event("connection_refused"),
            )

    def _ended(self, connection: SocketConnection, error: BaseException | None) -> None:
        self._accepted.discard(connection)
        self._connections.pop(connection, None)
        if isinstance(error, SocketError):
            log.info("the connection to a worker is broken: %s", error, extra=event("connection_broken"))
        elif error is not None and not isinstance(error, asyncio.CancelledError):
            log.error("a connection failed", exc_info=error, extra=event("exchange_failed"))

    def close(self) -> None:
        """Stop listening and cut all connections."""
        self._ending = True
        if self._looking is not None:
            self._looking.cancel()
        for each in self._listening:
            self._runtime.loop.remove_reader(each)
            each.close()
        for connection in self._accepted:
            connection.cut()
