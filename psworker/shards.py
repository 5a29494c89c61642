"""Pull, push and step: one flat payload between this worker and one server."""

import logging
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from pswire import frames
from pswire.addresses import Address
from pswire.dtypes import WIRE, to_wire
from pswire.plan import Plan
from pswire.segments import SegmentError, here
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import shard_pb2
from psworker.errors import PayloadRefused, Refused, SessionError, Voided
from psworker.exchange import Exchange
from psworker.retrying import MEANING, Backoff, insist, translated
from psworker.sharing import Attachment, Received

log = logging.getLogger("ps-worker")

TRANSPORTS = ("auto", "grpc", "shared-memory")


Floats = NDArray[np.float32]


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
        self._plan = plan.fingerprint
        self._dtype = dtype
        self._patience = patience
        self._closing = closing
        self._exchange = Exchange(channel)
        self._required = transport == "shared-memory"
        # Memory is to be shared, unless and until it turns out that it cannot be.
        self._wanted = transport != "grpc"
        # Goes with the exchange's stream.
        self._attachment: Attachment | None = None

    @property
    def transport(self) -> str:
        """ "grpc", "shared-memory", or "undecided" before the first payload."""
        if not self._wanted:
            return "grpc"
        return "undecided" if self._attachment is None else "shared-memory"

    @property
    def arena_versions(self) -> int:
        """Versions that a server with shared memory holds at once; 0 without."""
        return self._attachment.arena_versions if self._attachment is not None else 0

    def slot(self) -> Floats:
        """Where to write the next payload: shared memory if there is any free, else an array of ours."""
        slot = self._attachment.slot() if self._attachment is not None else None
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

        return insist(ask, self._backoff())

    def _received(
        self, first: shard_pb2.ExchangeReply, chunk: frames.ChunkView | None, ticket: int
    ) -> Received:
        if first.HasField("located"):
            if self._attachment is None:
                raise SessionError("the server named memory that is not shared")
            return self._attachment.receive(first.located, ticket)
        values = np.empty(self.elements, np.float32)
        self._exchange.payload(first, chunk, self._dtype, values)
        return Received(values)

    def push(self, ticket: int, values: Floats, after: int) -> bytes:
        """Stage `values` under `ticket`; the receipt. Raises PayloadRefused, Voided, Refused, Unreachable."""
        self._check(values)
        reply, _ = insist(lambda: self._send(ticket, values, after), self._backoff())
        return bytes(reply.receipt)

    def step(
        self, ticket: int, values: Floats, after: int, commit: pb.Commit, hello: pb.Hello
    ) -> tuple[list[pb.SessionEvent], Received | None]:
        """Push and commit in one round trip; what came of it, and the version that was granted next.

        Only for a job with one server. Tried once: raises grpc.RpcError when the
        answer does not come; whether the commit counted is then for the session to find out.
        Otherwise as `push`.
        """
        self._check(values)
        try:
            reply, chunk = self._send(ticket, values, after, commit, hello)
        except grpc.RpcError as error:
            if error.code() in MEANING:
                raise translated(error, f"server {self.server} at {self.address}") from error
            raise
        return list(reply.events), self._version(reply, chunk)

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
        values: Floats,
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
            request.push.dtype, request.push.bytes = WIRE["float32"], values.nbytes
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
        if self._attachment is None or not self._exchange.open:
            self._attachment = None
            try:
                self._attachment = self._attach(after)
            except SegmentError as error:
                # The server lets go of its half with the stream.
                self._exchange.close()
                where = f"server {self.server} at {self.address}"
                if self._required:
                    raise Refused(f"shared memory was asked for, but not with {where}: {error}") from error
                self._wanted = False
                log.info("payloads to and from %s go by gRPC: %s", where, error)
        return self._attachment

    def _attach(self, after: int) -> Attachment:
        request = shard_pb2.Attach(
            job=self.job,
            worker=self.worker,
            incarnation=self.incarnation,
            voucher=self.voucher,
            plan=self._plan,
            after=after,
            place=here(),
        )
        message = shard_pb2.ExchangeRequest(attach=request).SerializeToString()
        reply, _ = self._exchange.ask([message])
        return Attachment.of(reply.attached)

    def _check(self, values: Floats) -> None:
        if values.shape != (self.elements,) or values.dtype != np.float32:
            raise ValueError(
                f"payload for server {self.server}: expected float32 of shape ({self.elements},), "
                f"got {values.dtype} of shape {values.shape}"
            )

    def _header(self, ticket: int, after: int) -> shard_pb2.PushHeader:
        return shard_pb2.PushHeader(
            job=self.job, worker=self.worker, ticket=ticket, plan=self._plan, after=after
        )

    def close(self) -> None:
        self._exchange.close()

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
