"""The client of one server: pull a version, push a payload, or do both in one step with a commit."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import grpc
import numpy as np
from numpy.typing import NDArray

from pswire import running
from pswire.addresses import Address
from pswire.logs.events import event
from pswire.messages import EVENTS
from pswire.model.groups import GroupPart
from pswire.model.plan import Plan
from pswire.model.rows import ReceivedRows, Rows, WantedRows, nothing
from pswire.patience import UNKNOWN_TIMEOUT
from pswire.patience import silence as silence_of
from pswire.patience import stuck as stuck_after
from pswire.security.credentials import NO_TLS, Credentials
from pswire.transport.codecs import FLOAT32, OCTETS, Encoder, NotFinite
from pswire.transport.failures import CallEnded
from pswire.transport.rows import RowFormat, counts_of, row_codec
from pswire.transport.wire import Wire
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import shard_pb2
from psworker.control.backoff import Backoff, Contact, insist
from psworker.data.changes import KnownGroups, KnownVersion
from psworker.data.exchange import Answer, Exchange
from psworker.data.member import MemberRequests, commit_request, messages
from psworker.data.payloads import Floats, Payload, Pieces, Received, array_of
from psworker.data.shared_memory import Attachment
from psworker.data.transport import Lane, Lanes, Transport
from psworker.engine import Commit, Event, Grant
from psworker.errors import PayloadRefused, SessionError, Voided

log = logging.getLogger("ps-worker")

# Looked up once, because every step needs them.
_FLOAT32 = np.dtype(np.float32)


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a session that are the same for all its servers.

    `patience`: seconds to retry a server that does not answer. `silence`, `stuck`: as of `Transport`. `silent`: as of
    `Backoff`.
    """

    plan: Plan
    wire: Wire
    patience: float
    transport: str = "auto"
    credentials: Credentials = NO_TLS
    silence: float = silence_of(UNKNOWN_TIMEOUT)
    stuck: float = stuck_after(UNKNOWN_TIMEOUT)
    silent: dict[str, Backoff] = field(default_factory=dict)


class CommitAnswer(NamedTuple):
    """The answer to a commit.

    `events` were received at `received` of the monotonic clock. `granted`: the ticket that they grant, if any.
    `version`: that ticket's version, if it came along; it arrived later than the events.
    """

    events: list[Event]
    received: float
    granted: int | None
    version: Received | None


class ShardClient:
    """Talks to one server. Calls are idempotent, and repeat while the server does not answer.

    The thread that holds `turn` talks to the server on its first lane: the training loop's, or another. What is fetched
    ahead has a lane of its own, so that a version comes in while a payload goes out, except where memory is shared: no
    link lies between. Any thread may `close`.
    """

    def __init__(
        self,
        server: int,
        address: Address,
        channel: grpc.Channel,
        settings: Settings,
        closing: threading.Event,
        void: Callable[[int], str | None] = lambda ticket: None,
    ) -> None:
        """Prepare calls. `closing`: set when no call should be repeated any more. `void`: why a ticket is no longer
        valid, if so."""
        self.server, self.address = server, address
        self._settings, self._closing, self._void = settings, closing, void
        self._layout = settings.plan.shards[server]
        self.elements = self._layout.elements
        # Shared memory is float32, and so are the messages that replace it.
        self._wire = Wire(FLOAT32, FLOAT32) if settings.transport == "shared-memory" else settings.wire
        # Replaced as a whole at every Join, by the thread that joins. A push takes it once. Only the training loop,
        # which pushes, uses the encoder.
        self._member = self._new_member(pb.JoinReply(), self._wire.up.encoder(self._layout))
        self._contact, self._channel = self._contact_at(address), channel
        self._lanes = Lanes(self._transport, self._known_version)
        self._lane = self._lanes.first
        # Arrays that held earlier versions: the system would have to clear the pages of new ones. `append` and `pop`
        # of a list are atomic, so the reader may return an array without the turn.
        self._spare: list[NDArray[Any]] = []
        # The first lane's transport when it was told last; called when that is another one.
        self._kind = "undecided"
        self.on_transport: Callable[[], object] = lambda: None
        # As of `Backoff`: the session's thread finds this server elsewhere, and tells `move`.
        self.seek: Callable[[], bool] | None = None

    # Membership and place

    def admit(self, joined: pb.JoinReply) -> None:
        """Adopt the membership of a worker that has joined, or joined again. Another incarnation begins with a new
        encoder. In another generation of the job nothing that was asked before is of use."""
        encoder, before = self._member.encoder, self._member.joined
        same_job = before.job in ("", joined.job)
        if not same_job or joined.incarnation != before.incarnation:
            encoder = self._wire.up.encoder(self._layout)
        self._member = self._new_member(joined, encoder)
        if not same_job:
            # A server that ended while the request came in may never answer it.
            self.close()

    def move(self, address: Address, channel: grpc.Channel) -> None:
        """Adopt the server's other address. A call that waits for the former one tries here next."""
        self.address, self._contact, self._channel = address, self._contact_at(address), channel
        self._lanes.move()

    def close(self) -> None:
        """Break off the requests under way. Any thread may call this."""
        for lane in self._lanes.all:
            lane.close()

    @property
    def turn(self) -> threading.RLock:
        """Held by the thread that talks on the first lane."""
        return self._lane.turn

    @property
    def transport(self) -> Transport:
        """How the first lane's requests travel."""
        return self._lane.transport

    @property
    def encoder(self) -> Encoder:
        """The encoder of this membership's payloads, for the training loop's thread."""
        return self._member.encoder

    @property
    def arena_versions(self) -> int:
        """Versions that a server with shared memory holds at once; 0 without shared memory."""
        attachment = self.transport.attachment
        return attachment.arena_versions if attachment is not None else 0

    @property
    def two_lanes(self) -> bool:
        """Whether what is fetched ahead has a lane of its own. Groups of rows that take turns come on the first one,
        which knows the groups that are here."""
        decided = self.transport.kind not in ("undecided", "shared-memory")
        return decided and self._member.known is None

    # Versions in

    def pull(
        self,
        ticket: int,
        version: int,
        after: int,
        *,
        narrow: bool = False,
        rows: WantedRows = (),
        ahead: bool = False,
    ) -> Received:
        """Return the server's part of `version`: in the wire dtype if `narrow`, else float32.

        `after`: log index of the ticket's grant. `rows`: keys of rows of tables to read with it. `ahead`: fetched while
        the loop works on another ticket. Raises Voided when the version is gone, Refused, Unreachable.
        """
        member = self._member_with(ticket)
        lane = self._lanes.ahead() if ahead and self.two_lanes else self._lane

        def ask() -> Received:
            self._agree(lane, member, after)
            request = member.pull(
                *(ticket, version, after),
                base=self._base(member, lane),
                rows=rows,
            )
            answer = lane.exchange.ask(request)
            return self._received(lane, member, answer, ticket, version, narrow, rows)

        with lane.turn:
            return insist(ask, self._backoff())

    def pull_rows(self, ticket: int, version: int, after: int, rows: WantedRows) -> ReceivedRows:
        """Return rows of tables at a granted version; with ticket 0 at the server's newest.

        Raises Voided when the version is gone, Refused, Unreachable.
        """
        member = self._member_with(ticket) if ticket else self._member
        if not counts_of(rows):
            return nothing(self._settings.plan, rows, version)

        def ask() -> ReceivedRows:
            exchange = self._agreed(member, after)
            request = member.pull(ticket, version, after, rows=rows, rows_only=True)
            answer = exchange.ask(request)
            return self._received_rows(exchange, answer, rows, version if ticket else answer[0].version)

        with self.turn:
            return insist(ask, self._backoff())

    def pull_slots(self, count: int, version: int, after: int) -> Floats:
        """Return `count` slots of the optimizer at `version` or a later one, shape (count, trainable elements).

        Raises Refused, Unreachable.
        """
        member = self._member
        values = np.empty((count, self._layout.trainable), np.float32)

        def ask() -> Floats:
            exchange = self._agreed(member, after)
            answer = exchange.ask([[member.optimizer_slots(version, after)]])
            exchange.payload(answer, FLOAT32, values.reshape(-1))
            return values

        with self.turn:
            return insist(ask, self._backoff())

    def pull_table(self, number: int, version: int, after: int) -> NDArray[np.uint8]:
        """Return the server's part of table `number` at `version` or a later one, as it travels.

        Raises Refused, Unreachable.
        """
        member = self._member

        def ask() -> NDArray[np.uint8]:
            exchange = self._agreed(member, after)
            answer = exchange.ask([[member.whole_table(number, version, after)]])
            octets = np.empty(answer[0].bytes, np.uint8)
            exchange.payload(answer, OCTETS, octets)
            return octets

        with self.turn:
            return insist(ask, self._backoff())

    def _base(self, member: MemberRequests, lane: Lane) -> shard_pb2.Base | None:
        known = _known_of(member, lane)
        return None if known is None else known.base

    def _received_rows(
        self,
        exchange: Exchange,
        answer: Answer,
        rows: WantedRows,
        version: int,
    ) -> ReceivedRows:
        tables = self._settings.plan.tables
        form = RowFormat(tables, row_codec(self._wire.down), tuple(keys.size for keys in rows))
        data = exchange.rows(answer, form.answer_nbytes)
        return ReceivedRows(rows, form.decode_answer(data), version)

    def _received(
        self,
        lane: Lane,
        member: MemberRequests,
        answer: Answer,
        ticket: int,
        version: int,
        narrow: bool,
        rows: WantedRows = (),
    ) -> Received:
        """Receive a version, and the rows behind it."""
        found = self._received_version(lane, member, answer, ticket, version, narrow)
        if answer[0].row_bytes:
            found.rows = self._received_rows(lane.exchange, answer, rows, version)
        return found

    def _received_version(
        self, lane: Lane, member: MemberRequests, answer: Answer, ticket: int, version: int, narrow: bool
    ) -> Received:
        first, known = answer[0], _known_of(member, lane)
        if first.HasField("located"):
            attachment = lane.transport.attachment
            if attachment is None:
                raise SessionError("the server named memory that is not shared")
            return attachment.receive(first.located, ticket)
        values, exchange = self._array(narrow), lane.exchange
        if known is None:
            exchange.payload(answer, self._wire.down, values)
        elif first.unchanged:
            known.repeat(version, values)
        elif first.changes:
            chain = known.buffer(first.changes, version)
            exchange.payload(answer, OCTETS, chain, known.arrived)
            known.advance(version, chain, first.changes, values)
        else:
            exchange.payload(answer, self._wire.down, values)
            known.take(version, values)
        return Received(values, spare=self._spare)

    def _array(self, narrow: bool) -> NDArray[Any]:
        dtype = self._wire.down.array_dtype if narrow else np.dtype(np.float32)
        while self._spare:
            values = self._spare.pop()
            if values.dtype == dtype:
                return values
        return np.empty(self.elements, dtype)

    # Payloads out

    def push(
        self,
        ticket: int,
        payload: Payload,
        after: int,
        *,
        version: int = 0,
        raw: bool = False,
        rows: Rows = (),
    ) -> bytes:
        """Stage the payload, and rows of gradients of tables, under `ticket` and return the server's receipt.

        `version`: the one that the ticket was granted. `raw`: the payload is no gradient: a codec with scales must not
        round it, and it is of all rows. Raises ValueError, PayloadRefused, Voided, Refused, Unreachable.
        """
        values, member = self._checked(payload), self._member_with(ticket)
        part = None if raw else self._part(member, version, values)
        with self.turn:
            reply, _ = insist(
                lambda: self._send(member, ticket, values, after, part=part, raw=raw, rows=rows),
                self._backoff(),
            )
        return bytes(reply.receipt)

    def step(
        self,
        ticket: int,
        payload: Payload,
        after: int,
        commit: Commit,
        hello: pb.Hello,
        *,
        version: int = 0,
        narrow: bool = False,
        rows: Rows = (),
        ahead: WantedRows = (),
    ) -> CommitAnswer:
        """Push and commit in one round trip, which may bring the next grant and its version (`narrow` as in `pull`).

        `rows`: of gradients of tables. `ahead`: keys of rows to read with the next grant's version.

        Only for a job with one server. Raises as `push`; Voided leaves open whether the commit counted, if another
        membership has begun.
        """
        values = self._checked(payload)
        part = self._part(self._member_with(ticket), version, values)

        def ask() -> CommitAnswer:
            member = self._member_with(ticket)
            self._agreed_to_commit(member, after)
            answer = self._send(
                *(member, ticket, values, after, commit, hello),
                part=part,
                rows=rows,
                ahead=ahead,
            )
            now, events, granted = _noticed(answer)
            if granted is None:
                return CommitAnswer(events, now, None, None)
            along = self._version_along(member, answer, granted, narrow, ahead)
            return CommitAnswer(events, now, granted.ticket, along)

        with self.turn:
            return insist(ask, self._backoff())

    def commit(self, after: int, commit: Commit, hello: pb.Hello) -> CommitAnswer:
        """Commit what all servers have given receipts for, in a round trip that may bring the next grant.

        Only to server 0. Raises as `step`.
        """
        request = commit_request(commit, hello)

        def ask() -> CommitAnswer:
            exchange = self._agreed_to_commit(self._member_with(commit.ticket), after)
            now, events, _ = _noticed(exchange.ask([[request]]))
            return CommitAnswer(events, now, None, None)

        with self.turn:
            return insist(ask, self._backoff())

    def _version_along(
        self,
        member: MemberRequests,
        answer: Answer,
        granted: Grant,
        narrow: bool,
        ahead: WantedRows,
    ) -> Received | None:
        """Return the version that came with the answer; None when it did not come whole, and has to be pulled."""
        reply, chunk = answer
        if chunk is None and not reply.HasField("located"):
            return None
        try:
            lane, ticket, version = self._lane, granted.ticket, granted.version
            return self._received(lane, member, answer, ticket, version, narrow, ahead)
        except (grpc.RpcError, SessionError) as error:
            log.info(
                "the version that came with the grant was cut off: %s", error, extra=event("version_cut_off")
            )
            return None

    def _send(
        self,
        member: MemberRequests,
        ticket: int,
        values: NDArray[Any] | Pieces,
        after: int,
        commit: Commit | None = None,
        hello: pb.Hello | None = None,
        *,
        part: GroupPart | None = None,
        raw: bool = False,
        rows: Rows = (),
        ahead: WantedRows = (),
    ) -> Answer:
        """Push in the shared slot if there is one, else in chunks, and return the answer's beginning."""
        attachment, exchange = self._agree(self._lane, member, after), self._lane.exchange
        if commit is None or hello is None:
            request = member.push(ticket, after)
        else:
            request = member.step(ticket, after, commit, hello, self._base(member, self._lane))
        header, behind = request.push, self._behind(request.push, rows, ahead)
        if attachment is not None:
            attachment.fill(values)
            header.dtype, header.bytes = FLOAT32.number, values.nbytes
            return exchange.ask(messages(request, (), behind))
        array = np.ascontiguousarray(array_of(values))
        codec = FLOAT32 if raw and self._wire.up.scaled else self._wire.up
        encoder = member.encoder if codec is self._wire.up else codec.encoder(self._layout)
        pieces = encoder.pieces(ticket, array, part)
        header.dtype, header.bytes = codec.number, codec.size(self._layout if part is None else part.layout)
        try:
            # A piece is encoded while the kernel sends the one before it.
            return exchange.ask(messages(request, pieces, behind))
        except NotFinite as error:
            raise PayloadRefused(f"payload of ticket {ticket}: {error}") from error

    def _behind(self, header: shard_pb2.PushHeader, rows: Rows, ahead: WantedRows) -> Sequence[NDArray[Any]]:
        """Return what follows a payload, and announce it in its header."""
        tables = self._settings.plan.tables
        if not tables:
            return ()
        header.rows[:] = counts = counts_of(keys for keys, _ in rows)
        header.next_rows[:] = counts_of(ahead)
        codec = row_codec(self._wire.up)
        return RowFormat(tables, codec, tuple(counts)).encode(rows, ahead)

    def _checked(self, payload: Payload) -> NDArray[Any] | Pieces:
        """Return the payload's array, of the right shape and dtype; pieces stay apart until their destination is
        known."""
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

    def _part(self, member: MemberRequests, version: int, values: NDArray[Any] | Pieces) -> GroupPart | None:
        """Return the part of a contribution to `version` that travels; None for all of it. Raises ValueError if more
        than that is not zero."""
        if member.groups.count == 1:
            return None
        part, rest = member.groups.of(version, self.server), array_of(values).copy()
        part.put(rest, np.zeros(part.layout.elements, rest.dtype))
        if rest.any():
            place = int(np.flatnonzero(rest)[0])
            raise ValueError(
                f"payload for server {self.server}: expected zeros but for group {version % member.groups.count} of "
                f"{member.groups.count}, got {rest[place]} at element {place}"
            )
        return part

    # Inside

    def _member_with(self, ticket: int) -> MemberRequests:
        """Return the membership to which the ticket was granted. Raises Voided.

        When another membership begins, the tickets of the former are void before the new one is admitted here.
        """
        member, reason = self._member, self._void(ticket)
        if reason is not None:
            raise Voided(f"ticket {ticket} was cancelled: {reason}")
        return member

    def _new_member(self, joined: pb.JoinReply, encoder: Encoder) -> MemberRequests:
        return MemberRequests(joined, encoder, self._settings.plan, self.server, self._wire)

    def _contact_at(self, address: Address) -> Contact | None:
        """None without TLS: this worker could join, so it knows that the servers use none."""
        credentials = self._settings.credentials
        return Contact(address, credentials) if credentials.encrypted else None

    def _known_version(self) -> KnownVersion | None:
        deltas = self._settings.wire.deltas
        return None if deltas is None else KnownVersion(deltas, self._layout)

    def _agreed(self, member: MemberRequests, after: int) -> Exchange:
        """Return the exchange of the first lane, on which all is agreed. Hold the `turn`."""
        self._agree(self._lane, member, after)
        return self._lane.exchange

    def _agreed_to_commit(self, member: MemberRequests, after: int) -> Exchange:
        """As `_agreed`. A worker that is no member any more tries again: an earlier try may have counted, which the
        session learns when it joins again."""
        try:
            return self._agreed(member, after)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.ABORTED:
                raise CallEnded(grpc.StatusCode.UNAVAILABLE, f"{error.details()}: wait") from error
            raise

    def _agree(self, lane: Lane, member: MemberRequests, after: int) -> Attachment | None:
        """Return the memory that is shared on a lane, if any, once it is connected. Hold its `turn`."""
        transport = lane.current()
        attachment = transport.agree(member, after)
        if lane is self._lane and transport.kind != self._kind:
            self._kind = transport.kind
            self.on_transport()
        return attachment

    def _transport(self, first: bool) -> Transport:
        """Return a transport to where the server is now. No lane but the first shares memory."""
        settings, credentials = self._settings, self._settings.credentials
        # A server without a part of the model has nothing to share, which is no reason to refuse this worker.
        kind = settings.transport if self.elements or settings.transport == "grpc" else "auto"
        return Transport(
            *(self.server, self.address, self._channel, kind, first and settings.wire.exact),
            identity=credentials.identity if credentials.encrypted else None,
            silence=settings.silence,
            stuck=settings.stuck,
        )

    def _backoff(self) -> Backoff:
        settings = self._settings
        return Backoff(
            self.server,
            self.address,
            settings.patience,
            self._closing,
            self._contact,
            settings.silent,
            self.seek,
        )


def _known_of(member: MemberRequests, lane: Lane) -> KnownVersion | KnownGroups | None:
    return lane.known if member.known is None else member.known


def _noticed(answer: Answer) -> tuple[float, list[Event], Grant | None]:
    """Return when an answer's notices came, these, and the first grant among them."""
    now, events = running.system(), list[Event]()
    granted: Grant | None = None
    for message in answer[0].events:
        known = EVENTS.from_wire(message)
        if isinstance(known, Grant):
            known = known.received(now)
            granted = granted or known
        if known is not None:
            events.append(known)
    return now, events, granted
