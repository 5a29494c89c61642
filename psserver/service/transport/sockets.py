"""Exchange over plain sockets: the same requests and answers, for workers that got a token on a gRPC stream."""

import logging
import secrets
import socket
import threading
from collections.abc import Callable, Iterator

import grpc

from psserver.service.errors import Refused
from psserver.service.limits.watch import Caller, Watch
from psserver.service.rpc.registration import clipped
from pswire.logs.events import event
from pswire.transport import socket_handshake as handshake
from pswire.transport.framed_socket import TOKEN_BYTES, FramedSocket, Parts, SocketError
from pswire.transport.frames import Message

log = logging.getLogger("ps-server")

# Each has a thread. One more is refused, and its worker uses gRPC.
MOST_CONNECTIONS = 256
# Connections that have not shown their token yet. Each has a thread, too; one more, and the oldest is cut.
MOST_UNAUTHENTICATED = 64
# Between attempts to accept a connection when the system does not let us; seconds.
PAUSE = 0.2


Serve = Callable[[Iterator[Message], Caller], Iterator[Parts]]


class SocketToken:
    """Good for one connection, which lasts no longer than the stream on which the token was asked for."""

    def __init__(self, listener: "SocketListener") -> None:
        self.token = secrets.token_bytes(TOKEN_BYTES)
        self._listener = listener

    def withdraw(self) -> None:
        """The connection is cut, or not accepted any more. So a worker that is stopped keeps nothing here."""
        self._listener.withdraw(self.token)


class SocketListener:
    """Listens from the first time that it is asked for its name or port. Close it at the end.

    `bind`: where the port is; `port`: 0 for one that the system chooses.

    Any thread may call it. `_lock` owns all that changes; each connection has
    a thread of its own, which alone receives and sends on it.
    """

    def __init__(
        self,
        serve: Serve,
        bind: str = "127.0.0.1",
        port: int = 0,
        watch: Watch | None = None,
        patience: Callable[[int], float] = lambda nbytes: 3600.0,
    ) -> None:
        """`watch` and `patience` as of `psserver.service.rpc.registration.Registration`."""
        self._serve = serve
        self._watch, self._patience = watch or Watch(), patience
        self._bind, self._wanted = bind, port
        self._lock = threading.Lock()
        self._name: str | None = None
        self._port: int | None = None
        self._listening: list[socket.socket] = []
        # With the connection that showed it, if any has.
        self._tokens: dict[bytes, FramedSocket | None] = {}
        self._connections: set[FramedSocket] = set()
        # In the order in which they came.
        self._unauthenticated: dict[FramedSocket, None] = {}
        self._ending = threading.Event()

    @property
    def name(self) -> str:
        """Of the Unix socket; empty where that is impossible."""
        with self._lock:
            if self._name is None and not self._ending.is_set():
                self._name = self._listen_unix()
            return self._name or ""

    @property
    def port(self) -> int:
        """The TCP port, for workers of other machines; 0 where that is impossible."""
        with self._lock:
            if self._port is None and not self._ending.is_set():
                try:
                    self._port = self._listen_tcp()
                except SocketError as error:
                    log.warning("payloads of workers use gRPC: %s", error, extra=event("data_port_refused"))
                    self._port = 0
            return self._port or 0

    @property
    def tokens(self) -> int:
        """That were issued and not withdrawn."""
        with self._lock:
            return len(self._tokens)

    @property
    def connections(self) -> list[FramedSocket]:
        """That have shown their token."""
        with self._lock:
            return list(self._connections)

    @property
    def unauthenticated(self) -> int:
        """Connections that have not shown a token yet."""
        with self._lock:
            return len(self._unauthenticated)

    def open_port(self) -> None:
        """Now, rather than for the first worker that asks. Raises SocketError."""
        with self._lock:
            self._port = self._listen_tcp()

    def issue_token(self) -> SocketToken:
        token = SocketToken(self)
        with self._lock:
            self._tokens[token.token] = None
        return token

    def withdraw(self, token: bytes) -> None:
        with self._lock:
            connection = self._tokens.pop(token, None)
        if connection is not None:
            connection.cut()

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
        self._listening.append(listening)
        threading.Thread(target=self.accept, args=(listening,), name="accept", daemon=True).start()

    def accept(self, listening: socket.socket) -> None:
        """Accept connections until the listener is closed."""
        while True:
            try:
                connected, _ = listening.accept()
            except OSError as error:
                if self._ending.is_set():
                    return
                # Out of descriptors, say. The connection stays in the backlog: `accept` would fail again at once.
                why, told = error.strerror or error, event("accept_failed")
                log.warning("a connection cannot be accepted yet: %s", why, extra=told)
                self._ending.wait(PAUSE)
                continue
            self._begin(connected)

    def _begin(self, connected: socket.socket) -> None:
        try:
            if connected.family == socket.AF_UNIX:
                handshake.check_same_user(connected)
            connection = FramedSocket(connected)
        except OSError as error:
            log.warning("a connection was refused: %s", error, extra=event("connection_refused"))
            connected.close()
            return
        if not self._admit(connection):
            connection.close()
            return
        try:
            threading.Thread(target=self._run, args=(connection,), name="socket", daemon=True).start()
        except RuntimeError as error:
            log.warning("a connection was refused: %s", error, extra=event("connection_refused"))
            self._end(connection)

    def _admit(self, connection: FramedSocket) -> bool:
        """Unauthenticated connections that send nothing must not keep out those with a token, which send it at once."""
        with self._lock:
            if self._ending.is_set():
                return False
            if len(self._unauthenticated) >= MOST_UNAUTHENTICATED:
                oldest = next(iter(self._unauthenticated))
                del self._unauthenticated[oldest]
                oldest.cut()
            self._unauthenticated[connection] = None
            return True

    # One connection

    def _run(self, connection: FramedSocket) -> None:
        try:
            if self._authenticated(connection):
                self._answer(connection)
        except SocketError as error:
            log.info("the connection to a worker is broken: %s", error, extra=event("connection_broken"))
        finally:
            self._end(connection)

    def _authenticated(self, connection: FramedSocket) -> bool:
        """The first frame must be an unused token. Nothing else is read before it."""
        token = connection.first(most=TOKEN_BYTES)
        with self._lock:
            room = connection in self._unauthenticated and len(self._connections) < MOST_CONNECTIONS
            if not room or token is None or self._tokens.get(token, connection) is not None:
                return False
            self._tokens[token] = connection
            del self._unauthenticated[connection]
            self._connections.add(connection)
        connection.send([])
        return True

    def _end(self, connection: FramedSocket) -> None:
        with self._lock:
            self._unauthenticated.pop(connection, None)
            self._connections.discard(connection)
        connection.close()

    def _answer(self, connection: FramedSocket) -> None:
        refusal = self._exchanged(connection)
        if refusal is not None:
            connection.send([clipped(refusal.message).encode()], int(refusal.code.value[0]))
            connection.drain()

    def _exchanged(self, connection: FramedSocket) -> Refused | None:
        """Until the connection is over; or why it is to be ended."""
        try:
            caller = Caller(lambda: connection.alive, connection.cut)
            with self._watch.watching(caller):
                for reply in self._serve(_messages(connection), caller):
                    with caller.within(self._patience(sum(map(len, reply)))):
                        connection.send(reply)
        except Refused as refused:
            return refused
        except SocketError:
            raise
        except Exception as error:
            # As gRPC does with what a method raises.
            log.exception("an exchange failed", extra=event("exchange_failed"))
            return Refused(grpc.StatusCode.UNKNOWN, f"{type(error).__name__}: {error}")
        return None

    def close(self) -> None:
        """No connection is accepted any more, and those that stand are cut."""
        with self._lock:
            self._ending.set()
            listening, connections = list(self._listening), [*self._unauthenticated, *self._connections]
        for each in listening:
            # Closing alone would leave `accept` waiting.
            each.shutdown(socket.SHUT_RDWR)
            each.close()
        for connection in connections:
            connection.cut()


def _messages(connection: FramedSocket) -> Iterator[Message]:
    while (frame := connection.receive()) is not None:
        yield frame[0]
