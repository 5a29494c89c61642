"""How requests and payloads travel between this worker and one server: over gRPC, a socket, or shared memory.

A lane is a connection for one thread at a time; what is fetched ahead has one of its own.
"""

import logging
import threading
from collections.abc import Callable

import grpc

from pswire import running
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
from psworker.data.exchange import Exchange, GrpcStream, SocketStream
from psworker.data.member import Member
from psworker.data.shared_memory import Attachment
from psworker.errors import Refused

log = logging.getLogger("ps-worker")

TRANSPORTS = ("auto", "grpc", "socket", "shared-memory")


class Transport:
    """Negotiates the fastest transport at the beginning of every gRPC stream. What is agreed ends with that stream.

    With a server on this machine: shared memory, and messages over a Unix socket. With any other server, and for
    rounded payloads: chunks over a TCP socket. What is unavailable is not asked for again; the next best is used, down
    to gRPC itself. The gRPC stream stays open beside a socket, for its pings.

    The holder of the server's `turn` uses it; any thread may call `close`, `cut` and `check_alive`.
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
        counts as broken. `stuck`: seconds without progress after which a request does."""
        self.attachment: Attachment | None = None
        self._where = f"server {server} at {address}"
        self._host = address.host
        self._channel = channel
        self._identity = identity
        self._silence, self._stuck = silence, stuck
        self._required = kind if kind in ("socket", "shared-memory") else None
        self._memory = kind == "shared-memory" or (kind == "auto" and exact)
        self._socket = kind != "grpc"
        self._over_grpc = Exchange(self._open_grpc)
        self._over_socket: Exchange | None = None
        # The socket in use, and the gRPC stream with which it ends.
        self.socket_stream: SocketStream | None = None
        self.liveness_stream: GrpcStream | None = None
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

    def agree(self, member: Member, after: int) -> Attachment | None:
        """Return the shared memory, if any, negotiated anew if the stream broke. Call it before every request.

        `after`: log index of a grant, to which the server first catches up. Raises Refused, grpc.RpcError.
        """
        if not (self._memory or self._socket):
            return None
        if not (self._agreed and (self._over_socket or self._over_grpc).open):
            self._reset()
            if self._memory:
                self._share(member, after)
            if self.attachment is None and self._socket:
                self._dial(member, after)
            self._agreed = True
        return self.attachment

    def check_alive(self) -> None:
        """Cut a socket whose server has acknowledged nothing for `silence` seconds, and a request that is stuck.

        The pings of the gRPC stream use another connection and do not show it. What stands between may acknowledge
        for the dead, and then only progress tells. Any thread may call this.
        """
        self._cut_if_stuck()
        stream = self.socket_stream
        if stream is not None and stream.connection.silent(self._silence):
            log.warning(
                "the data port of %s has not answered for %g s; connecting again",
                *(self._where, self._silence),
                extra=event("data_port_silent", server=self._where),
            )
            stream.connection.cut()

    def _cut_if_stuck(self) -> None:
        exchange = self.exchange
        since = exchange.waits
        if since is None or (waited := running.now() - since) <= self._stuck:
            return
        log.warning(
            "nothing of a request to %s has moved for %.0f s (%s); connecting again",
            *(self._where, waited, self.kind),
            extra=event("request_stuck", server=self._where, seconds=waited),
        )
        exchange.waits = None
        if self.socket_stream is not None:
            self.socket_stream.connection.cut()
        else:
            exchange.close()

    def cut(self) -> None:
        """Break off the request under way. A socket ends with its gRPC stream. Any thread may call this."""
        self._over_grpc.close()

    def close(self) -> None:
        """Any thread may call this."""
        socket = self._over_socket
        if socket is not None:
            socket.close()
        self._over_grpc.close()

    # Shared memory

    def _share(self, member: Member, after: int) -> None:
        try:
            self.attachment = self._attached(member, after)
        except SegmentError as error:
            # If the stream broke meanwhile this raises, and everything is tried again: loans end with the stream.
            self._negotiate(member, after, ask=True)
            # The server gives up its half with the stream.
            self._reset()
            self._memory = False
            self._unavailable("shared memory", error, "shared-memory")

    def _attached(self, member: Member, after: int) -> Attachment:
        """Attach the member's memory. Raises SegmentError when none can be shared."""
        offer = self._negotiate(member, after, ask=True)
        if offer.refusal:
            raise SegmentError(offer.refusal)
        try:
            if offer.socket:
                self._use(handshake.connect_unix(offer.socket, offer.token))
        except SocketError as error:
            log.info(
                "requests to %s use gRPC: %s",
                *(self._where, error),
                extra=event("transport_unavailable", server=self._where),
            )
        return Attachment.of(self._negotiate(member, after, ask=False))

    # A socket for payloads

    def _dial(self, member: Member, after: int) -> None:
        try:
            offer = self._negotiate(member, after, ask=True)
            if not offer.port:
                raise SocketError("it listens on none" if offer.token else offer.refusal)
            context = None if self._identity is None else self._identity.line_context
            self._use(handshake.connect_tcp(self._host, offer.port, offer.token, context, self._silence))
        except SocketError as error:
            # If the server is gone meanwhile this raises, and everything is tried again.
            self._negotiate(member, after, ask=True)
            self._socket = False
            self._unavailable("a socket", error, "socket")

    # Both

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

    def _negotiate(self, member: Member, after: int, *, ask: bool) -> shard_pb2.Attached:
        reply, _ = self.exchange.ask([[member.attach(after, ask=ask)]])
        return reply.attached

    def _open_grpc(self) -> GrpcStream:
        self.liveness_stream = GrpcStream(self._channel)
        return self.liveness_stream

    def _use(self, connection: FramedSocket) -> None:
        """Send requests over `connection` from now on, until the gRPC stream on which it was agreed ends."""
        connection.probe(self._silence)
        assert self.liveness_stream is not None, "a socket is agreed on a gRPC stream"
        stream = self.socket_stream = SocketStream(connection, self.liveness_stream)
        self._socket_worked = True
        self._over_socket = Exchange(lambda: stream, stream)

    def _reset(self) -> None:
        """Close the streams, and forget what was agreed on them."""
        self.attachment = None
        socket, self._over_socket, self.socket_stream = self._over_socket, None, None
        if socket is not None:
            socket.close()
        self._over_grpc.close()


class Lane:
    """A connection to one server. The thread that holds `turn` talks on it; any thread may `move`, `cut` or `close` it.

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

    def cut(self) -> None:
        """Break off the request under way."""
        self.transport.cut()

    def close(self) -> None:
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
