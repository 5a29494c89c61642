"""How requests and payloads travel between this worker and one server: over gRPC, a socket, or shared memory.

A lane is a connection for one thread at a time; what is fetched ahead has one of its own.
"""

import logging
import threading
from collections.abc import Callable

import grpc

from pswire.addresses import Address
from pswire.logs.events import event
from pswire.patience import UNKNOWN_TIMEOUT
from pswire.patience import silence as silence_of
from pswire.patience import stuck as stuck_after
from pswire.security.identity import Identity
from pswire.transport import socket_handshake as handshake
from pswire.transport.framed_socket import FramedSocket, SocketError
from pswire.transport.segments import SegmentError
from pswire.v1 import shard_pb2
from psworker.data.changes import KnownVersion
from psworker.data.exchange import Exchange, GrpcStream, SocketStream, attached
from psworker.data.member import MemberRequests
from psworker.data.shared_memory import Attachment
from psworker.errors import Refused

log = logging.getLogger("ps-worker")

TRANSPORTS = ("auto", "grpc", "socket", "shared-memory")


class Transport:
    """Connects by the fastest transport to a server, which says over gRPC where it takes connections.

    With a server on this machine: shared memory, and messages over a Unix socket. With any other server, and for
    rounded payloads: chunks over a TCP socket. What is unavailable is not asked for again; the next best is used, down
    to gRPC itself. A connection is of one membership, and each one tries all again.

    The holder of the server's `turn` uses it; any thread may call `close`.
    """

    def __init__(
        self,
        server: int,
        address: Address,
        channel: grpc.Channel,
        kind: str,
        exact: bool,
        identity: Identity | None = None,
        silence: float = silence_of(UNKNOWN_TIMEOUT),
        stuck: float = stuck_after(UNKNOWN_TIMEOUT),
    ):
        """`kind`: one of TRANSPORTS. `exact`: payloads are float32, as all shared memory is; whether a payload is
        rounded must not depend on the worker's machine. `identity`: this process's certificate; None without TLS. With
        TLS nothing leaves this machine unencrypted. `silence`: seconds without an acknowledgement after which a socket
        counts as broken. `stuck`: seconds without progress after which a request over a socket does."""
        self.attachment: Attachment | None = None
        self._where = f"server {server} at {address}"
        self._host = address.host
        self._identity = identity
        self._silence, self._stuck = silence, stuck
        self._required = kind if kind in ("socket", "shared-memory") else None
        self._wanted = (kind == "shared-memory" or (kind == "auto" and exact), kind != "grpc")
        # Whether shared memory and a socket are still tried; anew for every membership.
        self._memory, self._socket = self._wanted
        self._over_grpc = Exchange(lambda: GrpcStream(channel))
        self._over_socket: Exchange | None = None
        # The socket in use, and the membership that connected it: the job and the incarnation.
        self.socket_stream: SocketStream | None = None
        self._membership = ("", 0)
        self._agreed = kind == "grpc"
        # Whether a socket was ever in use.
        self._socket_worked = False

    @property
    def exchange(self) -> Exchange:
        """The exchange that carries requests now."""
        socket = self._over_socket
        return socket if socket is not None and socket.open else self._over_grpc

    @property
    def kind(self) -> str:
        """One of "grpc", "socket" and "shared-memory"; "undecided" before the first payload."""
        if not self._agreed:
            return "undecided"
        if self.attachment is not None:
            return "shared-memory"
        return "socket" if self._socket else "grpc"

    def agree(self, member: MemberRequests, after: int) -> Attachment | None:
        """Return the shared memory, if any, connected anew if the connection broke. Call it before every request.

        `after`: log index of a grant, to which the server first catches up. Raises Refused, grpc.RpcError.
        """
        membership = (member.joined.job, member.joined.incarnation)
        if membership != self._membership:
            self._memory, self._socket = self._wanted
        if not (self._memory or self._socket):
            return None
        socket = self._over_socket
        if socket is None or not socket.open or membership != self._membership:
            self.close()
            self.attachment, self._over_socket, self.socket_stream = None, None, None
            self._connect(member, after)
            self._membership, self._agreed = membership, True
        return self.attachment

    def close(self) -> None:
        """Break off the request under way. The next one connects again. Any thread may call this."""
        socket = self._over_socket
        if socket is not None:
            socket.close()
        self._over_grpc.close()

    def _connect(self, member: MemberRequests, after: int) -> None:
        offer = self._offered(member, after)
        if self._memory:
            try:
                self._share(offer, member.claim(after))
            except OSError as error:
                # If the server is gone meanwhile this raises, and everything is tried again.
                offer, self._memory = self._offered(member, after), False
                self._unavailable("shared memory", error, "shared-memory")
        if self.attachment is None and self._socket:
            try:
                self._dial(offer, member.claim(after))
            except SocketError as error:
                self._offered(member, after)
                self._socket = False
                self._unavailable("a socket", error, "socket")
        if self.socket_stream is not None:
            # It has said what it had to say.
            self._over_grpc.close()

    def _offered(self, member: MemberRequests, after: int) -> shard_pb2.Attached:
        """Ask where the server takes connections."""
        reply, _ = self._over_grpc.ask([[member.attach(after)]])
        return reply.attached

    def _share(self, offer: shard_pb2.Attached, claim: bytes) -> None:
        """Connect to a server of this machine, which lends memory. Raises SocketError, SegmentError."""
        if offer.refusal or not offer.socket:
            raise SegmentError(offer.refusal or "it takes no connections of its machine")
        connection, answer = handshake.connect_unix(offer.socket, claim)
        try:
            self.attachment = Attachment(attached(answer), connection)
        except OSError:
            connection.close()
            raise
        self._use(connection)

    def _dial(self, offer: shard_pb2.Attached, claim: bytes) -> None:
        """Connect to the server's port. Raises SocketError."""
        if not offer.port:
            raise SocketError(offer.refusal or "it listens on none")
        context = None if self._identity is None else self._identity.line_context
        self._use(handshake.connect_tcp(self._host, offer.port, claim, context, self._silence))

    def _use(self, connection: FramedSocket) -> None:
        """Send requests over `connection` from now on, until it breaks."""
        stream = self.socket_stream = SocketStream(connection, self._where, self._stuck)
        self._socket_worked = True
        self._over_socket = Exchange(lambda: stream, stream)

    def _unavailable(self, what: str, error: OSError, kind: str) -> None:
        if self._required == kind:
            raise Refused(
                f"{what} was asked for, but is not available with {self._where}: {error}"
            ) from error
        # Unexpected if a socket has carried payloads before.
        log.log(
            logging.WARNING if self._socket_worked else logging.INFO,
            "%s is not available with %s: %s",
            *(what, self._where, error),
            extra=event("transport_unavailable", server=self._where),
        )


class Lane:
    """A connection to one server. The thread that holds `turn` talks on it; any thread may `move` or `close` it.

    `known`: the version that came on it last, of which only changes have to come; None where versions come whole.
    """

    def __init__(self, transport: Transport, known: KnownVersion | None) -> None:
        self.turn = threading.RLock()
        self.known = known
        # `_newest` is replaced by the thread that joins when the server has moved; the holder of the turn adopts it.
        self.transport = self._newest = transport

    @property
    def exchange(self) -> Exchange:
        """The exchange that carries requests now."""
        return self.transport.exchange

    def current(self) -> Transport:
        """Return the transport to the server's newest address. Hold the `turn`."""
        newest = self._newest
        if newest is not self.transport:
            self.transport.close()
            self.transport = newest
        return newest

    def move(self, transport: Transport) -> None:
        """Adopt a transport to the server's other address. A call that waits for the former one tries there next."""
        self._newest = transport
        self.transport.close()

    def close(self) -> None:
        """Break off the request under way."""
        self.transport.close()
        self._newest.close()


class Lanes:
    """The first lane to a server, and one for what is fetched ahead, from its first use on.

    So a version comes in while a payload goes out. Any thread may call the methods.
    """

    def __init__(
        self, transport: Callable[[bool], Transport], known: Callable[[], KnownVersion | None]
    ) -> None:
        """`transport`: returns a transport to where the server is now, for the first lane or (False) the other one.
        `known`: returns what a new lane knows."""
        self._transport, self._known = transport, known
        self._guard = threading.Lock()
        self.first = Lane(transport(True), known())
        self._second: Lane | None = None

    @property
    def all(self) -> list[Lane]:
        """The lanes that are in use."""
        return [self.first] if self._second is None else [self.first, self._second]

    def ahead(self) -> Lane:
        """Return the lane of what is fetched ahead."""
        with self._guard:
            if self._second is None:
                self._second = Lane(self._transport(False), self._known())
            return self._second

    def move(self) -> None:
        """Lead to the server's other address. A call that waits for the former one tries there next."""
        with self._guard:
            self.first.move(self._transport(True))
            if self._second is not None:
                self._second.move(self._transport(False))
