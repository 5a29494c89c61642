"""By what way requests and payloads travel between this worker and one server."""

import logging
from dataclasses import dataclass

import grpc

from pswire.addresses import Address
from pswire.transport import socket_handshake as meeting
from pswire.transport.codecs import FLOAT32, Codec
from pswire.transport.framed_socket import FramedSocket, LineError
from pswire.transport.segments import SegmentError, here
from pswire.v1 import shard_pb2
from psworker.data.exchange import Exchange, GrpcStream
from psworker.data.shared_memory import Attachment
from psworker.data.socket_exchange import LineStream
from psworker.errors import Refused

log = logging.getLogger("ps-worker")

TRANSPORTS = ("auto", "grpc", "socket", "shared-memory")


@dataclass(slots=True)
class Member:
    """Who a worker is to the servers, since its newest Join."""

    job: str = ""
    worker: str = ""
    incarnation: int = 0
    voucher: bytes = b""


class Transport:
    """What is agreed with a server at the beginning of every stream of gRPC, and ends with it.

    Shared memory with a server of this machine, and messages over a Unix
    socket; with any other, and for 16-bit payloads, chunks over a socket of
    TCP. What cannot be had is not asked for again: the next best is used, down
    to gRPC itself. Beside a socket the stream of gRPC stays open, as a witness.
    """

    def __init__(
        self, server: int, address: Address, channel: grpc.Channel, plan: str, kind: str, codec: Codec
    ):
        """`kind`: of TRANSPORTS; `codec`: that of messages. Shared memory is float32, and rounding that was asked for
        must not depend on which machine somebody is on."""
        self.attachment: Attachment | None = None
        self._where = f"server {server} at {address}"
        self._host = address.host
        self._channel = channel
        self._plan = plan
        self._required = kind if kind in ("socket", "shared-memory") else None
        self._memory = kind == "shared-memory" or (kind == "auto" and codec is FLOAT32)
        self._socket = kind != "grpc"
        self._remote = Exchange(self._opened)
        self._beside: Exchange | None = None
        self._witness: GrpcStream | None = None
        self._agreed = kind == "grpc"

    @property
    def exchange(self) -> Exchange:
        """By which requests go now."""
        beside = self._beside
        return beside if beside is not None and beside.open else self._remote

    @property
    def kind(self) -> str:
        """ "grpc", "socket" or "shared-memory"; "undecided" before the first payload."""
        if not self._agreed:
            return "undecided"
        if self.attachment is not None:
            return "shared-memory"
        return "socket" if self._socket else "grpc"

    def agree(self, member: Member, after: int) -> Attachment | None:
        """Before every request: what is shared, anew if the stream broke. Raises Refused, grpc.RpcError."""
        if not (self._memory or self._socket):
            return None
        if not self._agreed or not (self._beside or self._remote).open:
            self._let_go()
            if self._memory:
                self._share(member, after)
            if self.attachment is None and self._socket:
                self._dial(member, after)
            self._agreed = True
        return self.attachment

    def close(self) -> None:
        """From any thread."""
        beside = self._beside
        if beside is not None:
            beside.close()
        self._remote.close()

    # Shared memory

    def _share(self, member: Member, after: int) -> None:
        try:
            self.attachment = self._attached(member, after)
        except SegmentError as error:
            # Raises, and all this is tried again, if the stream broke meanwhile: what is lent on it goes with it.
            self._asked(member, after, ask=True)
            # The server lets go of its half with the stream.
            self._let_go()
            self._memory = False
            self._without("shared memory", error, "shared-memory")

    def _attached(self, member: Member, after: int) -> Attachment:
        """Raises SegmentError when no memory can be shared."""
        told = self._asked(member, after, ask=True)
        if told.refusal:
            raise SegmentError(told.refusal)
        try:
            if told.socket:
                self._use(meeting.connect_here(told.socket, told.token))
        except LineError as error:
            log.info("requests to %s go by gRPC: %s", self._where, error)
        return Attachment.of(self._asked(member, after, ask=False))

    # A socket for payloads

    def _dial(self, member: Member, after: int) -> None:
        try:
            told = self._asked(member, after, ask=True)
            if not told.port:
                raise LineError("it listens on none" if told.token else told.refusal)
            self._use(meeting.connect_to(self._host, told.port, told.token))
        except LineError as error:
            # Raises, and all this is tried again, if the server has gone meanwhile. This one says what can be had.
            self._asked(member, after, ask=True)
            self._socket = False
            self._without("a socket", error, "socket")

    # Both

    def _without(self, what: str, error: OSError, kind: str) -> None:
        if self._required == kind:
            raise Refused(f"{what} was asked for, but not to be had with {self._where}: {error}") from error
        log.info("%s cannot be had with %s: %s", what, self._where, error)

    def _asked(self, member: Member, after: int, *, ask: bool) -> shard_pb2.Attached:
        request = shard_pb2.Attach(
            job=member.job,
            worker=member.worker,
            incarnation=member.incarnation,
            voucher=member.voucher,
            plan=self._plan,
            after=after,
            place=here(),
            ask=ask,
        )
        message = shard_pb2.ExchangeRequest(attach=request).SerializeToString()
        reply, _ = self.exchange.ask([[message]])
        return reply.attached

    def _opened(self) -> GrpcStream:
        self._witness = GrpcStream(self._channel)
        return self._witness

    def _use(self, line: FramedSocket) -> None:
        """Requests go by `line` from now on, for as long as the stream of gRPC on which it was agreed."""
        assert self._witness is not None, "a line is agreed on a stream of gRPC"
        stream = LineStream(line, self._witness)
        self._beside = Exchange(lambda: stream, stream)

    def _let_go(self) -> None:
        """End what was agreed with the server, and the streams on which it was."""
        self.attachment = None
        beside, self._beside = self._beside, None
        if beside is not None:
            beside.close()
        self._remote.close()
