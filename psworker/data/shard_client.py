"""Pull, push and step: one flat payload between this worker and one server."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import grpc
import numpy as np
from numpy.typing import NDArray

from pswire.addresses import Address
from pswire.logs.events import event
from pswire.messages import EVENTS
from pswire.model.plan import Plan
from pswire.patience import UNKNOWN_TIMEOUT, ping_interval
from pswire.protocol import received
from pswire.security.credentials import NO_TLS, Credentials
from pswire.transport import frames
from pswire.transport.codecs import FLOAT32, Encoder, NotFinite
from pswire.transport.framed_socket import Parts
from pswire.transport.wire import Wire
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import shard_pb2
from psworker.control.backoff import MEANING, Backoff, Contact, insist, translated
from psworker.data.membership import MemberId, Membership
from psworker.data.payloads import Payload, Pieces, array_of
from psworker.data.shared_memory import Received
from psworker.data.transport import Transport
from psworker.engine import Commit, Event, Grant
from psworker.errors import PayloadRefused, SessionError, Voided

log = logging.getLogger("ps-worker")

Floats = NDArray[np.float32]

# Looked up once: they are on the path of every step.
_FLOAT32 = np.dtype(np.float32)
_EXHAUSTED, _ABORTED = (
    code.value[0] for code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.ABORTED)
)


class Answer(NamedTuple):
    """To a push with its commit: `events` were received at `received` of the monotonic clock. `granted`: the ticket
    that is among them, if any, and `version` its version, if that came along; it took longer."""

    events: list[Event]
    received: float
    granted: int | None
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
        wire: Wire,
        patience: float,
        closing: threading.Event,
        transport: str = "auto",
        void: Callable[[int], str | None] = lambda ticket: None,
        credentials: Credentials = NO_TLS,
        silence: float = ping_interval(UNKNOWN_TIMEOUT),
    ) -> None:
        """`void`: why a ticket is, if it is. `credentials`: what this process shows of itself. `silence`: as of
        `Transport`."""
        # Whoever could join without TLS knows that none is spoken here.
        self._trust: Callable[[Address], Contact | None] = lambda address: (
            Contact(address, credentials) if credentials.encrypted else None
        )
        self._contact = self._trust(address)
        self.server = server
        self.address = address
        self.elements = plan.shards[server].elements
        self._layout = plan.shards[server]
        self.turn = threading.RLock()
        self._plan = plan.fingerprint
        # Shared memory is float32, and so is what goes by messages in its stead.
        self._wire = Wire(FLOAT32, FLOAT32) if transport == "shared-memory" else wire
        # Replaced as one at every (re)join, by the thread that joins. A push takes it once. Only the training loop,
        # which pushes, uses the encoder.
        self._membership = Membership(MemberId(), self._encoder(), self._plan, self._wire)
        self._patience = patience
        self._closing = closing
        self._void = void
        # A server without a part of the model has nothing to share, which is no reason to refuse the others.
        kind = transport if self.elements or transport == "grpc" else "auto"
        newest = credentials.live.now if credentials.live is not None else None
        self._carried: Callable[[Address, grpc.Channel], Transport] = lambda address, channel: Transport(
            server, address, channel, self._plan, kind, wire.exact, newest, silence
        )
        # The newest is replaced by the thread that joins, where the server has moved; who holds the turn takes it up.
        self._transport = self._newest = self._carried(address, channel)
        # Arrays that versions were received into: a new one for each would cost the system's clearing of its pages.
        # A list's `append` and `pop` are whole, so the reader may return one without the turn.
        self._spare: list[NDArray[Any]] = []

    def admit(self, identity: MemberId) -> None:
        """This worker has joined, or joined again. Another incarnation remembers nothing of the one before."""
        encoder, before = self._membership.encoder, self._membership.identity
        same_job = before.job in ("", identity.job)
        if not same_job or identity.incarnation != before.incarnation:
            encoder = self._encoder()
        self._membership = Membership(identity, encoder, self._plan, self._wire)

    def _encoder(self) -> Encoder:
        return self._wire.up.encoder(self._layout)

    def move(self, address: Address, channel: grpc.Channel) -> None:
        """The server is elsewhere. Whoever waits for it there tries here next."""
        self.address, self._contact = address, self._trust(address)
        self._newest = self._carried(address, channel)
        self._transport.close()

    def _here(self) -> Transport:
        """What this try goes by. Hold the `turn`."""
        newest = self._newest
        if newest is not self._transport:
            self._transport.close()
            self._transport = newest
        return newest

    @property
    def identity(self) -> MemberId:
        """That of the newest Join."""
        return self._membership.identity

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
        """Where to write the next payload: shared memory if there is any, else an array of ours."""
        attachment = self._transport.attachment
        slot = attachment.slot() if attachment is not None else None
        return np.empty(self.elements, np.float32) if slot is None else slot

    def pull(self, ticket: int, version: int, after: int, *, narrow: bool = False) -> Received:
        """The payload of `version`: `narrow`, as it travels, else float32.

        Raises Voided when it is gone, Refused, Unreachable.
        """
        identity = self._holding(ticket).identity
        request = shard_pb2.PullRequest(
            job=identity.job,
            ticket=ticket,
            version=version,
            plan=self._plan,
            dtype=self._wire.down.number,
            after=after,
            worker=identity.worker,
            incarnation=identity.incarnation,
            membership_token=identity.membership_token,
        )

        def ask() -> Received:
            # Without a ticket nothing is pinned, and what lies there may change.
            in_place = self._here().agree(identity, after) is not None and ticket != 0
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
        self._transport.exchange.payload(first, chunk, self._wire.down, values)
        return Received(values, spare=self._spare)

    def pull_slots(self, slots: int, version: int, after: int) -> Floats:
        """What the optimizer remembers at `version` or a later one: so many slots of this server's trainable part, as
        (slots, elements). Raises Refused, Unreachable."""
        identity = self.identity
        values = np.empty((slots, self._layout.trainable), np.float32)
        request = shard_pb2.PullRequest(
            job=identity.job,
            version=version,
            plan=self._plan,
            dtype=FLOAT32.number,
            after=after,
            worker=identity.worker,
            incarnation=identity.incarnation,
            membership_token=identity.membership_token,
            slots=True,
        )

        def ask() -> Floats:
            self._here().agree(identity, after)
            message = shard_pb2.ExchangeRequest(pull=request).SerializeToString()
            first, chunk = self._transport.exchange.ask([[message]])
            self._transport.exchange.payload(first, chunk, FLOAT32, values.reshape(-1))
            return values

        with self.turn:
            return insist(ask, self._backoff())

    def _array(self, narrow: bool) -> NDArray[Any]:
        """For a version to be received into."""
        dtype = self._wire.down.array_dtype if narrow else np.dtype(np.float32)
        while self._spare:
            values = self._spare.pop()
            if values.dtype == dtype:
                return values
        return np.empty(self.elements, dtype)

    def push(self, ticket: int, payload: Payload, after: int, *, raw: bool = False) -> bytes:
        """Stage it under `ticket`; the receipt. `raw`: no gradient, which no codec with scales may round.

        Raises PayloadRefused, Voided, Refused, Unreachable.
        """
        values, membership = self._checked(payload), self._holding(ticket)
        with self.turn:
            reply, _ = insist(lambda: self._send(membership, ticket, values, after, raw=raw), self._backoff())
        return bytes(reply.receipt)

    def _holding(self, ticket: int) -> Membership:
        """The membership that was granted the ticket. Raises Voided: at another one's begin its tickets are void
        before it is admitted here."""
        membership, reason = self._membership, self._void(ticket)
        if reason is not None:
            raise Voided(f"ticket {ticket} was cancelled: {reason}")
        return membership

    def step(
        self,
        ticket: int,
        payload: Payload,
        after: int,
        commit: Commit,
        hello: pb.Hello,
        *,
        narrow: bool = False,
    ) -> Answer:
        """Push and commit in one round trip; what came of it, and the version that was granted next (as by `pull`).

        Only for a job with one server, and while the `turn` is held. Tried once: raises grpc.RpcError when the
        answer does not come; whether the commit counted is then for the session to find out.
        Otherwise as `push`.
        """
        values, membership = self._checked(payload), self._holding(ticket)
        try:
            reply, chunk = self._send(membership, ticket, values, after, commit, hello)
        except grpc.RpcError as error:
            if error.code() in MEANING:
                raise translated(error, f"server {self.server} at {self.address}") from error
            raise
        now, granted, events = time.monotonic(), None, []
        for message in reply.events:
            told = EVENTS.from_wire(message)
            if told is not None:
                events.append(received(told, now))
                if granted is None and type(told) is Grant:
                    granted = told.ticket
        version = None if granted is None else self._version(reply, chunk, granted, narrow)
        return Answer(events, now, granted, version)

    def keep(self, ticket: int) -> None:
        """What was pushed under `ticket` is committed."""
        self._membership.encoder.keep(ticket)

    def take_back(self, ticket: int) -> None:
        """What was committed under `ticket` was dropped."""
        self._membership.encoder.take_back(ticket)

    @property
    def residual(self) -> int | None:
        """The ticket whose commit left behind what the next payload is encoded with."""
        return self._membership.encoder.base

    def _version(
        self, reply: shard_pb2.ExchangeReply, chunk: frames.ChunkView | None, granted: int, narrow: bool
    ) -> Received | None:
        """The version that came with the answer. None when it did not come whole: it is pulled later."""
        if chunk is None and not reply.HasField("located"):
            return None
        try:
            return self._received(reply, chunk, granted, narrow)
        except (grpc.RpcError, SessionError) as error:
            told = event("version_cut_off")
            log.info("the version that came with the grant was cut off: %s", error, extra=told)
            return None

    def _send(
        self,
        membership: Membership,
        ticket: int,
        values: NDArray[Any] | Pieces,
        after: int,
        commit: Commit | None = None,
        hello: pb.Hello | None = None,
        *,
        raw: bool = False,
    ) -> tuple[shard_pb2.ExchangeReply, frames.ChunkView | None]:
        """Push, in a shared slot if one is free, else in chunks; the first message of the answer."""
        attachment, exchange = self._here().agree(membership.identity, after), self._transport.exchange
        if commit is None or hello is None:
            request = membership.push
        else:
            request = membership.stepping(commit, hello)
        header = request.push
        header.ticket, header.after = ticket, after
        request.in_place = attachment is not None
        slot = attachment.filled(values) if attachment is not None else 0
        request.slot = slot
        if slot:
            header.dtype, header.bytes = FLOAT32.number, values.nbytes
            reply, chunk = exchange.ask([[request.SerializeToString()]])
            if not reply.code:
                return reply, chunk
            if reply.code != _EXHAUSTED:
                # A refusal that did not end the stream.
                kind = Voided if reply.code == _ABORTED else PayloadRefused
                raise kind(f"server {self.server} at {self.address}: {reply.refusal}")
            request.slot = 0
        array = np.ascontiguousarray(array_of(values))
        if raw and self._wire.up.remembers:
            header.dtype, payload = FLOAT32.number, FLOAT32.encode(array)
        else:
            try:
                payload = membership.encoder.encode(ticket, array)
            except NotFinite as error:
                raise PayloadRefused(f"payload of ticket {ticket}: {error}") from error
            header.dtype = self._wire.up.number
        header.bytes = payload.nbytes
        return exchange.ask(_messages(request, payload))

    def _checked(self, payload: Payload) -> NDArray[Any] | Pieces:
        """Pieces stay apart until it is known where they go."""
        values = payload if isinstance(payload, Pieces) else array_of(payload)
        dtype = values.dtype
        known = dtype is _FLOAT32 or dtype == _FLOAT32 or dtype == self._wire.up.array_dtype
        if values.shape != (self.elements,) or not known:
            expected = " or ".join(sorted({"float32", str(self._wire.up.array_dtype)}))
            raise ValueError(
                f"payload for server {self.server}: expected {expected} of shape ({self.elements},), "
                f"got {values.dtype} of shape {values.shape}"
            )
        return values

    def look(self) -> None:
        """As `Transport.look`."""
        self._transport.look()

    def cut(self) -> None:
        """What is under way ends, as where the connection breaks. From any thread."""
        self._transport.cut()

    def close(self) -> None:
        """From any thread."""
        self._transport.close()
        self._newest.close()

    def _backoff(self) -> Backoff:
        return Backoff(self.server, self.address, self._patience, self._closing, self._contact)


def _messages(request: shard_pb2.ExchangeRequest, payload: NDArray[Any]) -> Iterator[Parts]:
    """The request, with the first chunk in the same message, then the other chunks."""
    head: Parts = (request.SerializeToString(),)
    for offset, data in frames.chunks(payload):
        yield *head, *frames.chunk_field(offset, data)
        head = ()
    if head:
        yield head
