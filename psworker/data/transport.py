"""How requests and payloads travel between this worker and one server: over gRPC, a socket, shared memory."""

import logging
from collections.abc import Callable

import grpc

from pswire.addresses import Address
from pswire.logs.events import event
from pswire.patience import UNKNOWN_TIMEOUT, ping_interval
from pswire.security.identity import Identity as TlsIdentity
from pswire.transport import socket_handshake as handshake
from pswire.transport.framed_socket import FramedSocket, SocketError
from pswire.transport.segments import SegmentError, here
from pswire.v1 import shard_pb2
from psworker.data.exchange import Exchange
from psworker.data.membership import MemberId
from psworker.data.shared_memory import Attachment
from psworker.data.streams import GrpcStream, SocketStream
from psworker.errors import Refused

log = logging.getLogger("ps-worker")

TRANSPORTS = ("auto", "grpc", "socket", "shared-memory")


class Transport:
    """What is agreed with a server at the beginning of every gRPC stream, and ends with it.

    Shared memory with a server of this machine, and messages over a Unix
    socket; with any other, and for rounded payloads, chunks over a TCP socket.
    What is not available is not asked for again: the next best is used, down
    to gRPC itself. Beside a socket the gRPC stream stays open, for its pings.

    The thread that holds the server's `turn` uses it; any thread may `close` it.
    """

    def __init__(
        self,
        server: int,
        address: Address,
        channel: grpc.Channel,
        plan: str,
        kind: str,
        exact: bool,
        newest: Callable[[], TlsIdentity] | None = None,
        silence: float = ping_interval(UNKNOWN_TIMEOUT),
    ):
        """`kind`: of TRANSPORTS; `exact`: messages are float32. Shared memory is, and rounding that was asked for must
        not depend on which machine the worker is on. `newest`: what this process shows of itself; None without
        TLS. With it, nothing leaves this machine unencrypted, whatever is available. `silence`: seconds without a sign
        of life after which a connection to another machine is given up."""
        self.attachment: Attachment | None = None
        self._where = f"server {server} at {address}"
        self._host = address.host
        self._channel = channel
        self._newest = newest
        # What the gRPC stream was opened with: the server takes its token from the same certificate only.
        self._shown: TlsIdentity | None = None
        self._silence = silence
        self._plan = plan
        self._required = kind if kind in ("socket", "shared-memory") else None
        self._memory = kind == "shared-memory" or (kind == "auto" and exact)
        self._socket = kind != "grpc"
        self._over_grpc = Exchange(self._opened)
        self._over_socket: Exchange | None = None
        # The socket in use, and the gRPC stream that it ends with.
        self.socket_stream: SocketStream | None = None
        self.liveness_stream: GrpcStream | None = None
        self._agreed = kind == "grpc"
        # A socket was in use once.
        self._carried = False

    @property
    def exchange(self) -> Exchange:
        """That carries requests now."""
        socket = self._over_socket
        return socket if socket is not None and socket.open else self._over_grpc

    @property
    def kind(self) -> str:
        """ "grpc", "socket" or "shared-memory"; "undecided" before the first payload."""
        if not self._agreed:
            return "undecided"
        if self.attachment is not None:
            return "shared-memory"
        return "socket" if self._socket else "grpc"

    def agree(self, identity: MemberId, after: int) -> Attachment | None:
        """Before every request: what is shared, anew if the stream broke. Raises Refused, grpc.RpcError."""
        if not (self._memory or self._socket):
            return None
        if not (self._agreed and (self._over_socket or self._over_grpc).open):
            self._let_go()
            if self._memory:
                self._share(identity, after)
            if self.attachment is None and self._socket:
                self._dial(identity, after)
            self._agreed = True
        return self.attachment

    def look(self) -> None:
        """From time to time, from any thread: whether the data port still answers. The pings of the gRPC stream, on
        another connection, do not tell."""
        stream = self.socket_stream
        if stream is not None and stream.connection.silent(self._silence):
            told = event("data_port_silent", server=self._where)
            log.warning(
                "the data port of %s has not answered for %g s; connecting again",
                *(self._where, self._silence),
                extra=told,
            )
            stream.connection.cut()

    def cut(self) -> None:
        """What is under way ends; a socket ends with its gRPC stream. From any thread."""
        self._over_grpc.close()

    def close(self) -> None:
        """From any thread."""
        socket = self._over_socket
        if socket is not None:
            socket.close()
        self._over_grpc.close()

    # Shared memory

    def _share(self, identity: MemberId, after: int) -> None:
        try:
            self.attachment = self._attached(identity, after)
        except SegmentError as error:
            # Raises, and all this is tried again, if the stream broke meanwhile: what is lent on it goes with it.
            self._asked(identity, after, ask=True)
            # The server lets go of its half with the stream.
            self._let_go()
            self._memory = False
            self._without("shared memory", error, "shared-memory")

    def _attached(self, identity: MemberId, after: int) -> Attachment:
        """Raises SegmentError when no memory can be shared."""
        offer = self._asked(identity, after, ask=True)
        if offer.refusal:
            raise SegmentError(offer.refusal)
        try:
            if offer.socket:
                self._use(handshake.connect_unix(offer.socket, offer.token))
        except SocketError as error:
            told = event("transport_unavailable", server=self._where)
            log.info("requests to %s use gRPC: %s", self._where, error, extra=told)
        return Attachment.of(self._asked(identity, after, ask=False))

    # A socket for payloads

    def _dial(self, identity: MemberId, after: int) -> None:
        try:
            offer = self._asked(identity, after, ask=True)
            if not offer.port:
                raise SocketError("it listens on none" if offer.token else offer.refusal)
            context = None if self._shown is None else self._shown.line_context
            self._use(handshake.connect_tcp(self._host, offer.port, offer.token, context, self._silence))
        except SocketError as error:
            # Raises, and all this is tried again, if the server has gone meanwhile. This one says what is available.
            self._asked(identity, after, ask=True)
            self._socket = False
            self._without("a socket", error, "socket")

    # Both

    def _without(self, what: str, error: OSError, kind: str) -> None:
        if self._required == kind:
            raise Refused(
                f"{what} was asked for, but is not available with {self._where}: {error}"
            ) from error
        told = event("transport_unavailable", server=self._where)
        # A surprise where it has carried payloads before.
        level = logging.WARNING if self._carried else logging.INFO
        log.log(level, "%s is not available with %s: %s", what, self._where, error, extra=told)

    def _asked(self, identity: MemberId, after: int, *, ask: bool) -> shard_pb2.Attached:
        request = shard_pb2.Attach(
            job=identity.job,
            worker=identity.worker,
            incarnation=identity.incarnation,
            membership_token=identity.membership_token,
            plan=self._plan,
            after=after,
            place=here(),
            ask=ask,
        )
        message = shard_pb2.ExchangeRequest(attach=request).SerializeToString()
        reply, _ = self.exchange.ask([[message]])
        return reply.attached

    def _opened(self) -> GrpcStream:
        if self._newest is not None:
            self._shown = self._newest()
        self.liveness_stream = GrpcStream(self._channel)
        return self.liveness_stream

    def _use(self, connection: FramedSocket) -> None:
        """`connection` carries requests from now on, for as long as the gRPC stream on which it was agreed."""
        connection.probe(self._silence)
        assert self.liveness_stream is not None, "a socket is agreed on a gRPC stream"
        stream = self.socket_stream = SocketStream(connection, self.liveness_stream)
        self._carried = True
        self._over_socket = Exchange(lambda: stream, stream)

    def _let_go(self) -> None:
        """End what was agreed with the server, and the streams on which it was."""
        self.attachment = None
        socket, self._over_socket, self.socket_stream = self._over_socket, None, None
        if socket is not None:
            socket.close()
        self._over_grpc.close()
