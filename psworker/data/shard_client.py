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

from pswire.addresses import Address
from pswire.logs.events import event
from pswire.model.plan import Plan
from pswire.transport import frames
from pswire.transport.codecs import FLOAT32, Codec, Encoder
from pswire.transport.framed_socket import Parts
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import shard_pb2
from psworker.control.backoff import MEANING, Backoff, insist, translated
from psworker.data.payloads import Payload, array_of
from psworker.data.shared_memory import Attachment, Received
from psworker.data.transport import Identity, Transport
from psworker.errors import PayloadRefused, SessionError, Voided

log = logging.getLogger("ps-worker")

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Answer:
    """To a push with its commit: `events` were received at `received` of the monotonic clock; `version` took longer."""

    events: list[pb.SessionEvent]
    received: float
    version: Received | None


class ShardClient:
    """One server's data plane. Calls repeat while the server does not answer; both are idempotent.

    `turn` owns the exchange with the server: the training loop holds it, or the
    thread that fetches ahead. `close` is for any thread.
    """

    def __init__(
        self,
        server: int,
        address: Address,
        channel: grpc.Channel,
        plan: Plan,
        codec: Codec,
        patience: float,
        closing: threading.Event,
        transport: str = "auto",
    ) -> None:
        self.server = server
        self.address = address
        self.elements = plan.shards[server].elements
        self.turn = threading.RLock()
        self._plan = plan.fingerprint
        # Shared memory is float32, and so is what goes by messages in its stead.
        self._codec = FLOAT32 if transport == "shared-memory" else codec
        # Who this worker is, and what encodes its payloads: replaced as one pair at every (re)join, by the thread that
        # joins. A push takes the pair once. Only the training loop, which pushes, uses the encoder.
        self._admitted: tuple[Identity, Encoder] = Identity(), self._codec.encoder(self.elements)
        self._patience = patience
        self._closing = closing
        # A server without a part of the model has nothing to share, which is no reason to refuse the others.
        kind = transport if self.elements or transport == "grpc" else "auto"
        self._transport = Transport(server, address, channel, self._plan, kind, codec)
        # Arrays that versions were received into: a new one for each would cost the system's clearing of its pages.
        # A list's `append` and `pop` are whole, so the reader may return one without the turn.
        self._spare: list[NDArray[Any]] = []

    def admit(self, identity: Identity) -> None:
        """This worker has joined, or joined again. Another incarnation remembers nothing of the one before."""
        known, encoder = self._admitted
        if identity.incarnation != known.incarnation:
            encoder = self._codec.encoder(self.elements)
        self._admitted = identity, encoder

    @property
    def identity(self) -> Identity:
        """That of the newest Join."""
        return self._admitted[0]

    @property
    def transport(self) -> str:
        """ "grpc", "socket" or "shared-memory"; "undecided" before the first payload."""
        return self._transport.kind

    @property
    def arena_versions(self) -> int:
        """Versions that a server with shared memory holds at once; 0 without."""
        attachment = self._transport.attachment
        return attachment.arena_versions if attachment is not None else 0

    def slot(self) -> Floats:
        """Where to write the next payload: shared memory if there is any free, else an array of ours."""
        attachment = self._transport.attachment
        slot = attachment.slot() if attachment is not None else None
        return np.empty(self.elements, np.float32) if slot is None else slot

    def pull(self, ticket: int, version: int, after: int, *, narrow: bool = False) -> Received:
        """The payload of `version`: `narrow`, as it travels, else float32.

        Raises Voided when it is gone, Refused, Unreachable.
        """
        identity = self.identity
        request = shard_pb2.PullRequest(
            job=identity.job,
            ticket=ticket,
            version=version,
            plan=self._plan,
            dtype=self._codec.number,
            after=after,
            worker=identity.worker,
            incarnation=identity.incarnation,
            membership_token=identity.membership_token,
        )

        def ask() -> Received:
            # Without a ticket nothing is pinned, and what lies there may change.
            in_place = self._agreed(after) is not None and ticket != 0
            message = shard_pb2.ExchangeRequest(pull=request, in_place=in_place).SerializeToString()
            return self._received(*self._transport.exchange.ask([[message]]), ticket, narrow)

        with self.turn:
            return insist(ask, self._backoff())

    def _received(
        self, first: shard_pb2.ExchangeReply, chunk: frames.ChunkView | None, ticket: int, narrow: bool
    ) -> Received:
        if first.HasField("located"):
            attachment = self._transport.attachment
            if attachment is None:
                raise SessionError("the server named memory that is not shared")
            return attachment.receive(first.located, ticket)
        values = self._array(narrow)
        self._transport.exchange.payload(first, chunk, self._codec, values)
        return Received(values, spare=self._spare)

    def _array(self, narrow: bool) -> NDArray[Any]:
        """For a version to be received into."""
        dtype = self._codec.array_dtype if narrow else np.dtype(np.float32)
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

    def step(
        self,
        ticket: int,
        payload: Payload,
        after: int,
        commit: pb.Commit,
        hello: pb.Hello,
        *,
        narrow: bool = False,
    ) -> Answer:
        """Push and commit in one round trip; what came of it, and the version that was granted next (as by `pull`).

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
            received = time.monotonic()
            return Answer(list(reply.events), received, self._version(reply, chunk, narrow))

    def keep(self, ticket: int) -> None:
        """What was pushed under `ticket` is committed."""
        self._admitted[1].keep(ticket)

    def _version(
        self, reply: shard_pb2.ExchangeReply, chunk: frames.ChunkView | None, narrow: bool
    ) -> Received | None:
        """The version that came with the answer. None when it did not come whole: it is pulled later."""
        granted = next((e.grant.ticket for e in reply.events if e.HasField("grant")), None)
        if granted is None or (chunk is None and not reply.HasField("located")):
            return None
        try:
            return self._received(reply, chunk, granted, narrow)
        except (grpc.RpcError, SessionError) as error:
            told = event("version_cut_off")
            log.info("the version that came with the grant was cut off: %s", error, extra=told)
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
        identity, encoder = self._admitted
        attachment, exchange = self._transport.agree(identity, after), self._transport.exchange
        request = shard_pb2.ExchangeRequest(
            push=self._header(identity, ticket, after),
            commit=commit,
            hello=hello,
            in_place=attachment is not None,
        )
        slot = attachment.filled(values) if attachment is not None else 0
        if slot:
            request.slot = slot
            request.push.dtype, request.push.bytes = FLOAT32.number, FLOAT32.size(values.size)
            reply, chunk = exchange.ask([[request.SerializeToString()]])
            if reply.code != grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]:
                self._judge(reply)
                return reply, chunk
            request.slot = 0
        payload = encoder.encode(ticket, np.ascontiguousarray(values))
        request.push.dtype, request.push.bytes = self._codec.number, payload.nbytes
        return exchange.ask(_messages(request, payload))

    def _judge(self, reply: shard_pb2.ExchangeReply) -> None:
        """Raises what a refusal that did not end the stream stands for."""
        if reply.code:
            kind = Voided if reply.code == grpc.StatusCode.ABORTED.value[0] else PayloadRefused
            raise kind(f"server {self.server} at {self.address}: {reply.refusal}")

    def _agreed(self, after: int) -> Attachment | None:
        return self._transport.agree(self.identity, after)

    def _checked(self, values: NDArray[Any]) -> NDArray[Any]:
        known = values.dtype == np.float32 or values.dtype == self._codec.array_dtype
        if values.shape != (self.elements,) or not known:
            expected = " or ".join(sorted({"float32", str(self._codec.array_dtype)}))
            raise ValueError(
                f"payload for server {self.server}: expected {expected} of shape ({self.elements},), "
                f"got {values.dtype} of shape {values.shape}"
            )
        return values

    def _header(self, identity: Identity, ticket: int, after: int) -> shard_pb2.PushHeader:
        return shard_pb2.PushHeader(
            job=identity.job,
            worker=identity.worker,
            ticket=ticket,
            plan=self._plan,
            after=after,
            incarnation=identity.incarnation,
            membership_token=identity.membership_token,
        )

    def close(self) -> None:
        """From any thread."""
        self._transport.close()

    def _backoff(self) -> Backoff:
        return Backoff(self.server, self.address, self._patience, self._closing)


def _messages(request: shard_pb2.ExchangeRequest, payload: NDArray[Any]) -> Iterator[Parts]:
    """The request, with the first chunk in the same message, then the other chunks."""
    head: Parts = (request.SerializeToString(),)
    for offset, data in frames.chunks(payload):
        yield *head, *frames.chunk_field(offset, data)
        head = ()
    if head:
        yield head
