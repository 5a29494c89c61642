"""The connection to one server: requests go out and answers come in, over gRPC, a socket, or shared memory."""

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import grpc
import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from pswire.addresses import Address
from pswire.bounds import BoundError, check, checker
from pswire.logs.events import event
from pswire.model.plan import Plan
from pswire.patience import UNKNOWN_TIMEOUT
from pswire.patience import silence as silence_of
from pswire.patience import stuck as stuck_after
from pswire.security.credentials import NO_TLS, Credentials
from pswire.transport import frames
from pswire.transport import socket_handshake as handshake
from pswire.transport.codecs import OCTETS, ElementDecoder, Elementwise, WireDtypeError
from pswire.transport.failures import CallEnded
from pswire.transport.framed_socket import FramedSocket, Parts, SocketError
from pswire.transport.segments import SegmentError
from pswire.transport.wire import Wire
from pswire.v1 import shard_pb2
from psworker.control.backoff import Backoff, out_of_bounds
from psworker.data.changes import KnownVersion
from psworker.data.member import MemberRequests
from psworker.data.shared_memory import Attachment
from psworker.data.streams import GrpcStream, SocketStream, Stream
from psworker.errors import Refused, SessionError

log = logging.getLogger("ps-worker")

# Looked up once, because every step needs it.
_CHECK = checker(shard_pb2.ExchangeReply.DESCRIPTOR)

Answer = tuple[shard_pb2.ExchangeReply, memoryview | None]
"""The first message of an answer, and the chunk of a payload in it."""

# What is tried, the fastest first, for each setting; gRPC itself remains.
_WAYS: Final = {
    "auto": ("shared-memory", "socket"),
    "grpc": (),
    "socket": ("socket",),
    "shared-memory": ("shared-memory",),
}
_NAMES: Final = {"shared-memory": "shared memory", "socket": "a socket"}


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a session that are the same for all its servers.

    `patience`: seconds to retry a server that does not answer. `silence`: seconds without an acknowledgement after
    which a socket counts as broken. `stuck`: seconds without progress after which a request over a socket does.
    `silent`: as of `Backoff`. `session`: the secret by which the servers recognise the session.
    """

    plan: Plan
    wire: Wire
    patience: float
    transport: str = "auto"
    credentials: Credentials = NO_TLS
    silence: float = silence_of(UNKNOWN_TIMEOUT)
    stuck: float = stuck_after(UNKNOWN_TIMEOUT)
    silent: dict[str, Backoff] = field(default_factory=dict)
    session: str = ""


class Endpoint(NamedTuple):
    """Where a server is: its address, and a channel to it."""

    address: Address
    channel: grpc.Channel


class Carrier:
    """Carries one request after another to one server, by the fastest way that works.

    With a server on this machine: shared memory, and messages over a Unix socket. With any other, and for rounded
    payloads: a TCP socket. If neither is available: gRPC, over which the server says where it takes connections. The
    first request connects, and so does the next one after the connection broke, after the server moved, and in
    another membership.

    The thread that holds `turn` uses it; any thread may call `move` and `close`. `kind`: the way that is in use,
    "undecided" before the first request. `known`: the version that came last, of which only changes have to come; None
    where versions come whole. Methods raise grpc.RpcError when the connection breaks or the server refuses.
    """

    def __init__(
        self,
        server: int,
        place: Endpoint,
        settings: Settings,
        *,
        memory: bool,
        connected: Callable[[], object] = lambda: None,
    ) -> None:
        """`memory`: share memory with a server on this machine. `connected`: called after each connection."""
        self.turn = threading.RLock()
        self.kind = "undecided"
        self.attachment: Attachment | None = None
        layout, deltas = settings.plan.shards[server], settings.wire.deltas
        self.known = None if deltas is None else KnownVersion(deltas, layout)
        self._server, self._place, self._settings, self._connected = server, place, settings, connected
        # A server without a part of the model has nothing to share, which is no reason to refuse this worker.
        wanted = settings.transport if layout.elements or settings.transport == "grpc" else "auto"
        self._required = wanted != "auto"
        # All shared memory is float32, and whether a payload is rounded must not depend on the worker's machine.
        shares = memory and (settings.wire.exact or self._required)
        self._ways = tuple(way for way in _WAYS[wanted] if shares or way != "shared-memory")
        self.stream: Stream | None = None
        # The place and the membership (job and incarnation) of the newest stream, and the ways that failed there.
        self._wanted: tuple[Endpoint, str, int] | None = None
        self._failed: set[str] = set()
        # Holds `stream` and how often it was closed: who connects may have to close what was made meanwhile.
        self._guard = threading.Lock()
        self._closes = 0

    # Connections

    def agree(self, member: MemberRequests, after: int) -> Attachment | None:
        """Connect if necessary, and return the shared memory, if any. Call it before every request.

        `after`: log index of a grant, to which the server first catches up. Raises Refused, too.
        """
        closes, place = self._closes, self._place
        wanted = place, member.joined.job, member.joined.incarnation
        if wanted != self._wanted:
            self._wanted, self._failed = wanted, set()
        elif self.stream is not None:
            return self.attachment
        self.attachment = None
        try:
            self.kind = self._connect(place, member, after, closes)
        except BaseException:
            self.close()
            raise
        self._connected()
        return self.attachment

    def move(self, place: Endpoint) -> None:
        """Look for the server elsewhere from now on. The request under way is broken off."""
        self._place = place
        self.close()

    def close(self) -> None:
        """Break off the request under way. The next one connects again."""
        with self._guard:
            self._closes += 1
            stream, self.stream = self.stream, None
        if stream is not None:
            stream.close()

    def _use(self, stream: Stream, closes: int) -> None:
        """Replace the stream, unless another thread has closed it since `closes` was read. Raises CallEnded then."""
        with self._guard:
            current = closes == self._closes
            if current:
                unused, self.stream = self.stream, stream
            else:
                unused = stream
        if unused is not None:
            unused.close()
        if not current:
            raise _closed_here()

    def _connect(self, place: Endpoint, member: MemberRequests, after: int, closes: int) -> str:
        """Make a stream, and return its kind."""
        self._use(GrpcStream(place.channel), closes)
        ways = [way for way in self._ways if way not in self._failed]
        if not ways:
            return "grpc"
        question = [[member.attach(after)]]
        reply, _ = self.ask(question)
        for way in ways:
            connect = self._dial if way == "socket" else self._share
            try:
                connection = connect(reply.attached, place, member.claim(after))
            except OSError as error:
                # If the server is gone meanwhile this raises, and everything is tried again.
                reply, _ = self.ask(question)
                self._unavailable(way, place, error)
                self._failed.add(way)
                continue
            # gRPC has said what it had to say.
            self._use(SocketStream(connection, self._named(place), self._settings.stuck), closes)
            return way
        return "grpc"

    def _share(self, offer: shard_pb2.Attached, place: Endpoint, claim: bytes) -> FramedSocket:
        """Connect to a server of this machine, which lends memory. Raises SocketError, SegmentError."""
        if offer.refusal or not offer.socket:
            raise SegmentError(offer.refusal or "it takes no connections of its machine")
        connection, answer = handshake.connect_unix(offer.socket, claim)
        try:
            self.attachment = Attachment(_attached(answer), connection)
        except OSError:
            connection.close()
            raise
        return connection

    def _dial(self, offer: shard_pb2.Attached, place: Endpoint, claim: bytes) -> FramedSocket:
        """Connect to the server's port, with TLS where TLS is in use. Raises SocketError."""
        if not offer.port:
            raise SocketError(offer.refusal or "it listens on none")
        credentials = self._settings.credentials
        context = credentials.identity.line_context if credentials.encrypted else None
        return handshake.connect_tcp(place.address.host, offer.port, claim, context, self._settings.silence)

    def _unavailable(self, way: str, place: Endpoint, error: OSError) -> None:
        what, where = _NAMES[way], self._named(place)
        if self._required:
            raise Refused(f"{what} was asked for, but is not available with {where}: {error}") from error
        # Unexpected if it was in use before.
        log.log(
            logging.WARNING if self.kind == way else logging.INFO,
            "%s is not available with %s: %s",
            *(what, where, error),
            extra=event("transport_unavailable", server=where),
        )

    def _named(self, place: Endpoint) -> str:
        return f"server {self._server} at {place.address}"

    # Requests and answers

    def ask(self, requests: Iterable[Parts]) -> Answer:
        """Send the messages of one request and return the first message of its answer."""
        try:
            stream = self._standing()
            for request in requests:
                stream.send(request)
            return _parsed(stream.receive())
        except BaseException:
            self.close()
            raise

    def payload(self, answer: Answer, codec: Elementwise, out: NDArray[Any]) -> None:
        """Receive the payload that begins in `answer` into `out`: float32, or the codec's `array_dtype`."""
        (first, chunk), total, received = answer, codec.itemsize * out.size, 0
        decoder = ElementDecoder(codec, out)
        try:
            if first.bytes != total:
                raise SessionError(f"expected a payload of {total} bytes, got one of {first.bytes}")
            while received < total:
                chunk = _fitting(chunk, total - received)
                decoder.feed(chunk)
                received += chunk.nbytes
                if received < total:
                    _, chunk = _parsed(self._standing().receive())
        except WireDtypeError as error:
            self.close()
            raise SessionError(f"a chunk of the payload does not fit: {error}") from error
        except BaseException:
            self.close()
            raise

    def version(
        self,
        answer: Answer,
        version: int,
        codec: Elementwise,
        out: NDArray[Any],
        known: KnownVersion | None,
    ) -> None:
        """Receive a version into `out`, whole or as changes of the `known` one, which is that version from then on."""
        first = answer[0]
        try:
            if known is not None and first.unchanged:
                known.repeat(version, out)
            elif known is not None and first.changes:
                chain = known.buffer(first.changes, version)
                self.payload(answer, OCTETS, chain)
                known.advance(version, chain, first.changes, out)
            else:
                self.payload(answer, codec, out)
                if known is not None:
                    known.take(version, out)
        except BaseException:
            self.close()
            raise

    def rows(self, answer: Answer, expected: int) -> memoryview:
        """Receive that many bytes of rows behind a payload, which has been received."""
        data, received = np.empty(expected, np.uint8).data, 0
        try:
            if answer[0].row_bytes != expected:
                raise SessionError(f"expected {expected} bytes of rows, got {answer[0].row_bytes}")
            while received < expected:
                _, chunk = _parsed(self._standing().receive())
                chunk = _fitting(chunk, expected - received)
                data[received : received + chunk.nbytes] = chunk
                received += chunk.nbytes
        except BaseException:
            self.close()
            raise
        return data

    def _standing(self) -> Stream:
        if self.stream is None:
            raise _closed_here()
        return self.stream


def _closed_here() -> CallEnded:
    """Another thread closed the stream. The server has refused nothing: this counts as a broken connection."""
    return CallEnded(grpc.StatusCode.CANCELLED, "the stream was closed here")


def _parsed(message: frames.Message | None) -> Answer:
    if message is None:
        raise SessionError("the server ended the stream without an answer")
    try:
        reply, chunk = frames.parsed(shard_pb2.ExchangeReply, message)
        _CHECK(reply)
    except frames.FrameError as error:
        raise SessionError(str(error)) from error
    except BoundError as error:
        raise out_of_bounds(error) from error
    return reply, chunk


def _fitting(chunk: memoryview | None, missing: int) -> memoryview:
    """Return a chunk of a payload that lacks `missing` bytes. Raises SessionError for one that does not fit."""
    if chunk is None or not 0 < chunk.nbytes <= missing:
        got = "none" if chunk is None else f"one of {chunk.nbytes}"
        raise SessionError(f"expected a chunk of 1 to {missing} bytes, got {got}")
    return chunk


def _attached(message: bytes) -> shard_pb2.Attached:
    """Parse the frame that accepts a connection. Raises SocketError."""
    try:
        answer = shard_pb2.Attached.FromString(message)
        check(answer)
    except (DecodeError, BoundError) as error:
        raise SocketError(f"expected an Attached, got {len(message)} bytes: {error}") from error
    return answer
