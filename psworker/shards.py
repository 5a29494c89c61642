"""Pull, push and step: one flat payload between this worker and one server."""

import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from pswire import frames
from pswire.addresses import Address
from pswire.dtypes import WIRE, array_dtype, to_wire
from pswire.lines import LineError
from pswire.plan import Plan
from pswire.segments import SegmentError, here
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import shard_pb2
from psworker.errors import PayloadRefused, Refused, SessionError, Voided
from psworker.exchange import Exchange, GrpcStream
from psworker.line import LineStream
from psworker.payloads import Payload, array_of
from psworker.retrying import MEANING, Backoff, insist, translated
from psworker.sharing import Attachment, Received

log = logging.getLogger("ps-worker")

TRANSPORTS = ("auto", "grpc", "shared-memory")


Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Answer:
    """To a push with its commit: `events` were heard at `heard` of the monotonic clock; `version` took longer."""

    events: list[pb.SessionEvent]
    heard: float
    version: Received | None


class ShardClient:
    """One server's data plane. Calls repeat while the server does not answer; both are idempotent."""

    def __init__(
        self,
        server: int,
        address: Address,
        channel: grpc.Channel,
        plan: Plan,
        dtype: str,
        patience: float,
        closing: threading.Event,
        transport: str = "auto",
    ) -> None:
        self.server = server
        self.address = address
        self.elements = plan.shards[server].elements
        # Set at every (re)join.
        self.job = ""
        self.worker = ""
        self.incarnation = 0
        self.voucher = b""
        # Whoever exchanges with the server: the training loop, and what fetches for it meanwhile.
        self.turn = threading.RLock()
        # Versions are received as they travel, not widened to float32.
        self.narrow = False
        self._plan = plan.fingerprint
        # Shared memory is float32, and so is what goes by gRPC in its stead.
        self._dtype = "float32" if transport == "shared-memory" else dtype
        self._patience = patience
        self._closing = closing
        self._channel = channel
        self._remote = Exchange(self._opened)
        # With a server of this machine: beside the stream of gRPC, and no longer than that.
        self._local: Exchange | None = None
        self._witness: GrpcStream | None = None
        self._required = transport == "shared-memory"
        # Memory is to be shared, unless and until it turns out that it cannot be. Rounding that was asked for must
        # not depend on which machine somebody is on.
        self._wanted = self._required or (transport == "auto" and dtype == "float32")
        # Arrays that versions were received into: a new one for each would cost the system's clearing of its pages.
        self._spare: list[NDArray[Any]] = []
        # Goes with the exchange's stream.
        self._attachment: Attachment | None = None

    def _opened(self) -> GrpcStream:
        self._witness = GrpcStream(self._channel)
        return self._witness

    @property
    def _exchange(self) -> Exchange:
        """By which requests go now."""
        local = self._local
        return local if local is not None and local.open else self._remote

    @property
    def transport(self) -> str:
        """ "grpc", "shared-memory", or "undecided" before the first payload."""
        if not self._wanted:
            return "grpc"
        return "undecided" if self._attachment is None else "shared-memory"

    @property
    def arena_versions(self) -> int:
        """Versions that a server with shared memory holds at once; 0 without."""
        attachment = self._attachment
        return attachment.arena_versions if attachment is not None else 0

    def slot(self) -> Floats:
        """Where to write the next payload: shared memory if there is any free, else an array of ours."""
        attachment = self._attachment
        slot = attachment.slot() if attachment is not None else None
        return np.empty(self.elements, np.float32) if slot is None else slot

    def pull(self, ticket: int, version: int, after: int) -> Received:
        """The payload of `version`. Raises Voided when it is gone, Refused, Unreachable."""
        request = shard_pb2.PullRequest(
            job=self.job,
            ticket=ticket,
            version=version,
            plan=self._plan,
            dtype=WIRE[self._dtype],
            after=after,
        )

        def ask() -> Received:
            # Without a ticket nothing is pinned, and what lies there may change.
            in_place = ticket != 0 and self._attached(after) is not None
            message = shard_pb2.ExchangeRequest(pull=request, in_place=in_place).SerializeToString()
            return self._received(*self._exchange.ask([message]), ticket)

        with self.turn:
            return insist(ask, self._backoff())

    def _received(
        self, first: shard_pb2.ExchangeReply, chunk: frames.ChunkView | None, ticket: int
    ) -> Received:
        if first.HasField("located"):
            if self._attachment is None:
                raise SessionError("the server named memory that is not shared")
            return self._attachment.receive(first.located, ticket)
        values = self._array()
        self._exchange.payload(first, chunk, self._dtype, values)
        return Received(values, spare=self._spare)

    def _array(self) -> NDArray[Any]:
        """For a version to be received into."""
        dtype = array_dtype(self._dtype if self.narrow else "float32")
        while self._spare:
            values = self._spare.pop()
            if values.dtype == dtype:
                return values
        return np.empty(self.elements, dtype)

    def push(self, ticket: int, payload: Payload, after: int) -> bytes:
        """Stage it under `ticket`; the receipt. Raises PayloadRefused, Voided, Refused, Unreachable."""
        values = self._checked(array_of(payload))
        with self.turn:
            reply, _ = insist(lambda: self._send(ticket, values, after), self._backoff())
        return bytes(reply.receipt)

    def step(self, ticket: int, payload: Payload, after: int, commit: pb.Commit, hello: pb.Hello) -> Answer:
        """Push and commit in one round trip; what came of it, and the version that was granted next.

        Only for a job with one server. Tried once: raises grpc.RpcError when the
        answer does not come; whether the commit counted is then for the session to find out.
        Otherwise as `push`.
        """
        values = self._checked(array_of(payload))
        with self.turn:
            try:
                reply, chunk = self._send(ticket, values, after, commit, hello)
            except grpc.RpcError as error:
                if error.code() in MEANING:
                    raise translated(error, f"server {self.server} at {self.address}") from error
                raise
            heard = time.monotonic()
            return Answer(list(reply.events), heard, self._version(reply, chunk))

    def _version(self, reply: shard_pb2.ExchangeReply, chunk: frames.ChunkView | None) -> Received | None:
        """The version that came with the answer. None when it did not come whole: it is pulled later."""
        granted = next((e.grant.ticket for e in reply.events if e.HasField("grant")), None)
        if granted is None or (chunk is None and not reply.HasField("located")):
            return None
        try:
            return self._received(reply, chunk, granted)
        except (grpc.RpcError, SessionError) as error:
            log.info("the version that came with the grant was cut off: %s", error)
            return None

    def _send(
        self,
        ticket: int,
        values: NDArray[Any],
        after: int,
        commit: pb.Commit | None = None,
        hello: pb.Hello | None = None,
    ) -> tuple[shard_pb2.ExchangeReply, frames.ChunkView | None]:
        """Push, in a shared slot if one is free, else in chunks; the first message of the answer."""
        attachment = self._attached(after)
        request = shard_pb2.ExchangeRequest(
            push=self._header(ticket, after), commit=commit, hello=hello, in_place=attachment is not None
        )
        slot = attachment.filled(values) if attachment is not None else 0
        if slot:
            request.slot = slot
            request.push.dtype, request.push.bytes = WIRE["float32"], 4 * values.size
            reply, chunk = self._exchange.ask([request.SerializeToString()])
            if reply.code != grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]:
                self._judge(reply)
                return reply, chunk
            request.slot = 0
        payload = to_wire(np.ascontiguousarray(values), self._dtype)
        request.push.dtype, request.push.bytes = WIRE[self._dtype], payload.nbytes
        return self._exchange.ask(_messages(request, payload))

    def _judge(self, reply: shard_pb2.ExchangeReply) -> None:
        """Raises what a refusal that did not end the stream stands for."""
        if reply.code:
            kind = Voided if reply.code == grpc.StatusCode.ABORTED.value[0] else PayloadRefused
            raise kind(f"server {self.server} at {self.address}: {reply.refusal}")

    def _attached(self, after: int) -> Attachment | None:
        """Shared memory, agreed anew at the beginning of every stream. Raises Refused if it must be had and cannot."""
        if not self._wanted:
            return None
        if self._attachment is None or not (self._local or self._remote).open:
            self._let_go()
            try:
                self._attachment = self._attach(after)
            except SegmentError as error:
                # The server lets go of its half with the stream.
                self._let_go()
                where = f"server {self.server} at {self.address}"
                if self._required:
                    raise Refused(f"shared memory was asked for, but not with {where}: {error}") from error
                self._wanted = False
                log.info("payloads to and from %s go by gRPC: %s", where, error)
        return self._attachment

    def _attach(self, after: int) -> Attachment:
        """Raises SegmentError when no memory can be shared."""
        told = self._asked(after, ask=True)
        if told.refusal:
            raise SegmentError(told.refusal)
        self._local = self._line(told.socket)
        try:
            return Attachment.of(self._asked(after, ask=False))
        except grpc.RpcError as error:
            if self._local is None or error.code() != grpc.StatusCode.UNAVAILABLE:
                raise
            # Turned away at the socket, or the server is gone: the stream beside it tells which.
            log.info("requests to server %d at %s go by gRPC: %s", self.server, self.address, error)
            self._local = None
            return Attachment.of(self._asked(after, ask=False))

    def _asked(self, after: int, *, ask: bool) -> shard_pb2.Attached:
        request = shard_pb2.Attach(
            job=self.job,
            worker=self.worker,
            incarnation=self.incarnation,
            voucher=self.voucher,
            plan=self._plan,
            after=after,
            place=here(),
            ask=ask,
        )
        message = shard_pb2.ExchangeRequest(attach=request).SerializeToString()
        reply, _ = self._exchange.ask([message])
        return reply.attached

    def _line(self, name: str) -> Exchange | None:
        """An exchange by the server's socket; None where there is none, or it is out of reach."""
        witness = self._witness
        if not name or witness is None:
            return None
        try:
            stream = LineStream(name, witness)
        except LineError as error:
            log.info("requests to server %d at %s go by gRPC: %s", self.server, self.address, error)
            return None
        return Exchange(lambda: stream, stream)

    def _let_go(self) -> None:
        """End what was agreed with the server about shared memory, and the streams on which it was."""
        self._attachment = None
        local, self._local = self._local, None
        if local is not None:
            local.close()
        self._remote.close()

    def _checked(self, values: NDArray[Any]) -> NDArray[Any]:
        known = values.dtype == np.float32 or values.dtype == array_dtype(self._dtype)
        if values.shape != (self.elements,) or not known:
            expected = " or ".join(sorted({"float32", self._dtype}))
            raise ValueError(
                f"payload for server {self.server}: expected {expected} of shape ({self.elements},), "
                f"got {values.dtype} of shape {values.shape}"
            )
        return values

    def _header(self, ticket: int, after: int) -> shard_pb2.PushHeader:
        return shard_pb2.PushHeader(
            job=self.job, worker=self.worker, ticket=ticket, plan=self._plan, after=after
        )

    def close(self) -> None:
        """From any thread."""
        local = self._local
        if local is not None:
            local.close()
        self._remote.close()

    def _backoff(self) -> Backoff:
        return Backoff(self.server, self.address, self._patience, self._closing)


def _messages(request: shard_pb2.ExchangeRequest, payload: NDArray[Any]) -> Iterator[bytes]:
    """The request, with the first chunk in the same message, then the other chunks."""
    head = request.SerializeToString()
    for offset, data in frames.chunks(payload):
        yield b"".join([head, *frames.chunk_field(offset, data)])
        head = b""
    if head:
        yield head
