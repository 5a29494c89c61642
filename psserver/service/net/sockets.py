"""Exchange over plain sockets: the same requests and answers, for workers that got a token on a gRPC stream."""

import asyncio
import logging
import secrets
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import grpc

from psserver.service.errors import Refused
from psserver.service.guard.calls import Caller, Watch
from psserver.service.guard.limits import CONNECTIONS, UNAUTHENTICATED, UNAUTHENTICATED_OF_ONE, Strangers
from psserver.service.guard.rates import TokenBucket, Turns
from psserver.service.net import bulk
from psserver.service.net.connection import Connection
from psserver.service.net.loop import HeavyWork, Owner
from psserver.service.net.payloads import Buffers
from psserver.service.net.registration import clipped
from psserver.service.net.streams import Serve
from psserver.service.net.tls_connection import TlsConnection
from pswire.logs.events import event
from pswire.security.names import IdentityError
from pswire.transport import framed_socket
from pswire.transport import socket_handshake as handshake
from pswire.transport.framed_socket import FRAME_BYTES, TOKEN_BYTES, Parts, SocketError

log = logging.getLogger("ps-server")

# Between attempts to accept a connection when the system does not let us; seconds.
PAUSE = 0.2
# Connections that are accepted in one turn of the loop.
AT_ONCE = 64
# Between two lines about failed handshakes.
MINUTE = 60.0
# How long a peer that was refused may take to close; seconds.
REFUSED_CLOSES = 10.0


class SocketToken:
    """Good for one connection, which lasts no longer than the stream on which the token was asked for."""

    def __init__(self, listener: "SocketListener", fingerprint: bytes) -> None:
        self.token = secrets.token_bytes(TOKEN_BYTES)
        # Of the certificate of whoever asked for it.
        self.fingerprint = fingerprint
        # That has shown it.
        self.connection: Connection | None = None
        self._listener = listener

    def withdraw(self) -> None:
        """The connection is cut, or not accepted any more. So a worker that is stopped keeps nothing here."""
        self._listener.withdraw(self)

    def fits(self, connection: Connection) -> bool:
        """It is unused, and `connection` is of whoever asked for it. On a Unix socket the system says whose it is."""
        seen = connection.fingerprint
        return self.connection is None and (seen is None or seen == self.fingerprint)


class SocketStream:
    """A connection as the method that serves it sees it."""

    def __init__(self, connection: Connection, caller: Caller, patience: Callable[[int], float]) -> None:
        self._connection, self._patience = connection, patience
        self.caller = caller
        self.fingerprint = connection.fingerprint or b""
        self.receive = connection.receive
        self.receive_many = connection.receive_many

    async def send(self, parts: Parts) -> None:
        # As `Caller.within`, without what a context manager costs at every step.
        caller = self.caller
        caller.deadline = time.monotonic() + self._patience(sum(map(len, parts)))
        try:
            await self._connection.send(parts)
        finally:
            caller.deadline = None

    async def send_many(self, messages: Iterator[Parts]) -> None:
        with self.caller.within(self._patience(FRAME_BYTES)):
            await self._connection.send_many(messages)


class SocketListener:
    """Listens from the first time that it is asked for its name or port. Close it at the end.

    `bind`: where the port is; `port`: 0 for one that the system chooses. The loop's thread owns it.
    """

    def __init__(
        self,
        serve: Serve,
        owner: Owner,
        bind: str = "127.0.0.1",
        port: int = 0,
        watch: Watch | None = None,
        patience: Callable[[int], float] = lambda nbytes: 3600.0,
        contexts: Callable[[], ssl.SSLContext] | None = None,
        refused: Counter[str] | None = None,
    ) -> None:
        """`watch` and `patience` as of `psserver.service.net.registration.Registration`. `contexts`: that of TLS for a
        new connection from another machine; None for none. `refused`: counts failed handshakes, as "handshake"."""
        self._serve = serve
        self._owner = owner
        self._watch, self._patience = watch or Watch(), patience
        self._bind, self._wanted = bind, port
        self._contexts = contexts
        self._buffers = Buffers()
        self._threads = HeavyWork(owner, bulk.THREADS, "payload")
        self._name: str | None = None
        self._port: int | None = None
        self._listening: list[socket.socket] = []
        self._tokens: dict[bytes, SocketToken] = {}
        self._connections: dict[Connection, Caller] = {}
        self._unauthenticated: Strangers[Connection] = Strangers(
            int(UNAUTHENTICATED.value), int(UNAUTHENTICATED_OF_ONE.value)
        )
        self._handshakes = Turns()
        self._refused: Counter[str] = Counter() if refused is None else refused
        self._told = TokenBucket(1 / MINUTE, 1)
        # It was said that none can be accepted, and none was since.
        self._pausing = False
        self._ending = False

    @property
    def name(self) -> str:
        """Of the Unix socket; empty where that is impossible."""
        if self._name is None and not self._ending:
            self._name = self._listen_unix()
        return self._name or ""

    @property
    def port(self) -> int:
        """The TCP port, for workers of other machines; 0 where that is impossible."""
        if self._port is None and not self._ending:
            try:
                self._port = self._listen_tcp()
            except SocketError as error:
                log.warning("payloads of workers use gRPC: %s", error, extra=event("data_port_refused"))
                self._port = 0
        return self._port or 0

    @property
    def tokens(self) -> int:
        """That were issued and not withdrawn."""
        return len(self._tokens)

    @property
    def connections(self) -> list[Connection]:
        """That have shown their token."""
        return list(self._connections)

    @property
    def received(self) -> int:
        """Bytes of buffers for large frames, in all."""
        return self._buffers.taken

    def holders(self) -> list[tuple[Caller, int]]:
        """The same, by connections that have one."""
        return [
            (caller, held) for connection, caller in self._connections.items() if (held := connection.held)
        ]

    @property
    def unauthenticated(self) -> int:
        """Connections that have not shown a token yet."""
        return len(self._unauthenticated)

    def open_port(self) -> None:
        """Now, rather than for the first worker that asks. Raises SocketError."""
        self._port = self._listen_tcp()

    def issue_token(self, fingerprint: bytes = b"") -> SocketToken:
        """For whoever has shown the certificate with that fingerprint, and no other."""
        token = SocketToken(self, fingerprint)
        self._tokens[token.token] = token
        return token

    def withdraw(self, token: SocketToken) -> None:
        if self._tokens.pop(token.token, None) is not None and token.connection is not None:
            token.connection.cut()

    def begin(self) -> None:
        """Start the threads: later the system may give none. Raises RuntimeError."""
        self._threads.begin()

    def end(self) -> None:
        """After the loop."""
        self._threads.close()

    # Accepting

    def _listen_unix(self) -> str:
        try:
            listening, name = handshake.listen_unix()
        except SocketError as error:
            told = event("local_socket_refused")
            log.info("workers of this machine send their requests over gRPC: %s", error, extra=told)
            return ""
        self._start(listening)
        return name

    def _listen_tcp(self) -> int:
        listening = handshake.listen_tcp(self._bind, self._wanted)
        self._start(listening)
        port = int(listening.getsockname()[1])
        log.info("listening for workers' payloads on port %d", port, extra=event("data_port", port=port))
        return port

    def _start(self, listening: socket.socket) -> None:
        listening.setblocking(False)
        self._listening.append(listening)
        self._owner.loop.add_reader(listening, self.accept, listening)

    def accept(self, listening: socket.socket) -> None:
        """Accept what has come, some connections at a time."""
        for _ in range(AT_ONCE):
            try:
                connected, place = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(listening, error)
                return
            self._pausing = False
            self._begin(connected, place[0] if isinstance(place, tuple) else "")

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        """Out of descriptors, say. The connection stays in the backlog: `accept` would fail again at once."""
        if not self._pausing:
            why, told = error.strerror or error, event("accept_failed")
            log.warning("a connection cannot be accepted yet: %s", why, extra=told)
        self._pausing = True
        self._owner.loop.remove_reader(listening)
        self._owner.loop.call_later(PAUSE, self._go_on, listening)

    def _go_on(self, listening: socket.socket) -> None:
        if not self._ending:
            self._owner.loop.add_reader(listening, self.accept, listening)

    def _begin(self, connected: socket.socket, address: str) -> None:
        try:
            if connected.family == socket.AF_UNIX:
                handshake.check_same_user(connected)
            connection = self._made(connected)
        except (OSError, IdentityError) as error:
            log.warning("a connection was refused: %s", error, extra=event("connection_refused"))
            connected.close()
            return
        # Those that send nothing must not keep out those with a token, which send it at once.
        for oldest in self._unauthenticated.came(connection, address):
            oldest.cut()
        connection.run(self._run(connection, address), lambda error: self._ended(connection, error))

    def _made(self, connected: socket.socket) -> Connection:
        loop, buffers, threads = self._owner.loop, self._buffers, self._threads
        if connected.family == socket.AF_UNIX or self._contexts is None:
            return Connection(loop, connected, buffers, threads)
        return TlsConnection(loop, connected, self._contexts(), buffers, threads)

    # One connection

    async def _run(self, connection: Connection, address: str) -> None:
        caller = Caller(connection.cut, paced=False, address=address)
        with self._watch.watching(caller):
            with caller.within(framed_socket.HANDSHAKE_TIMEOUT):
                if not await self._authenticated(connection, caller):
                    return
            await connection.send([])
            refusal = await self._exchanged(connection, caller)
            if refusal is not None:
                with caller.within(REFUSED_CLOSES):
                    await connection.send([clipped(refusal.message).encode()], int(refusal.code.value[0]))
                    await connection.drain()

    async def _authenticated(self, connection: Connection, caller: Caller) -> bool:
        """The first frame must be an unused token. Nothing else is read before it."""
        connection.expect(most=TOKEN_BYTES)
        if isinstance(connection, TlsConnection):
            try:
                await connection.handshake(partial(self._handshakes.mine, caller.address))
            except SocketError as error:
                self._refuse(caller.address, error)
                return False
        frame = await connection.receive()
        token = None if frame is None else self._tokens.get(bytes(frame))
        room = connection in self._unauthenticated and len(self._connections) < CONNECTIONS.value
        if not room or token is None or not token.fits(connection):
            return False
        connection.expect(most=framed_socket.FRAME_BYTES)
        token.connection = connection
        self._unauthenticated.gone(connection)
        self._connections[connection] = caller
        return True

    def _refuse(self, address: str, error: SocketError) -> None:
        """Of many that come, some are named."""
        self._refused["handshake"] += 1
        if self._told.take():
            told = event("connection_refused")
            log.warning(
                "a connection of %s to the data port was refused: %s; %d in all",
                *(address, error, self._refused["handshake"]),
                extra=told,
            )

    async def _exchanged(self, connection: Connection, caller: Caller) -> Refused | None:
        """Until the connection is over; or why it is to be ended."""
        try:
            await self._serve(SocketStream(connection, caller, self._patience))
        except Refused as refused:
            return refused
        except SocketError:
            raise
        except Exception as error:
            # As gRPC does with what a method raises.
            log.exception("an exchange failed", extra=event("exchange_failed"))
            return Refused(grpc.StatusCode.UNKNOWN, f"{type(error).__name__}: {error}")
        return None

    def _ended(self, connection: Connection, error: BaseException | None) -> None:
        self._unauthenticated.gone(connection)
        self._connections.pop(connection, None)
        if isinstance(error, SocketError):
            log.info("the connection to a worker is broken: %s", error, extra=event("connection_broken"))
        elif error is not None and not isinstance(error, asyncio.CancelledError):
            log.error("a connection failed", exc_info=error, extra=event("exchange_failed"))

    def close(self) -> None:
        """No connection is accepted any more, and those that stand are cut, soon."""
        self._ending = True
        for each in self._listening:
            self._owner.loop.remove_reader(each)
            each.close()
        for connection in [*self._unauthenticated, *self._connections]:
            connection.cut()
