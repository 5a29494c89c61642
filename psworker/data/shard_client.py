"""The client of one server: pull a version, push a payload, or do both in one step with a commit."""

import logging
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import grpc
import numpy as np
from numpy.typing import NDArray

from pswire import running
from pswire.addresses import Address
from pswire.logs.events import event
from pswire.messages import EVENTS
from pswire.model.groups import GroupPart
from pswire.model.rows import ReceivedRows, Rows, WantedRows, nothing
from pswire.transport.codecs import FLOAT32, OCTETS, Elementwise, Encoder, NotFinite
from pswire.transport.failures import CallEnded
from pswire.transport.rows import RowFormat, counts_of, row_codec
from pswire.transport.wire import Wire
from pswire.v1 import coordinator_pb2 as pb
from psworker.control.backoff import Backoff, Contact, insist
from psworker.data.carrier import Answer, Carrier, Endpoint, Settings
from psworker.data.member import MemberRequests, messages
from psworker.data.payloads import Floats, Payload, Pieces, Received, array_of
from psworker.engine import Commit, Event, Grant
from psworker.errors import PayloadRefused, SessionError, Voided

log = logging.getLogger("ps-worker")

# Looked up once, because every step needs them.
_FLOAT32 = np.dtype(np.float32)

T = TypeVar("T")


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

    `carrier`: of the training loop's requests, and of any other's that takes its `turn`. What is fetched ahead has one
    of its own, so that a version comes in while a payload goes out, except where memory is shared: no link lies
    between. Any thread may `close`.
    """

    def __init__(
        self,
        server: int,
        address: Address,
        channel: grpc.Channel,
        settings: Settings,
        closing: threading.Event,
        void: Callable[[int], str | None] = lambda ticket: None,
        *,
        connected: Callable[[], object] = lambda: None,
        seek: Callable[[], bool] | None = None,
    ) -> None:
        """Prepare calls. `closing`: set when no call should be repeated any more. `void`: why a ticket is no longer
        valid, if so. `connected`: called after each new connection. `seek`: as of `Backoff`."""
        self.server, self.address = server, address
        self._settings, self._closing, self._void, self._seek = settings, closing, void, seek
        self._layout = settings.plan.shards[server]
        self.elements = self._layout.elements
        # Shared memory is float32, and so are the messages that replace it.
        self._wire = Wire(FLOAT32, FLOAT32) if settings.transport == "shared-memory" else settings.wire
        # Replaced as a whole at every Join, by the thread that joins. A push takes it once. Only the training loop,
        # which pushes, uses the encoder.
        self._member = self._new_member(pb.JoinReply(), self._wire.up.encoder(self._layout))
        self._contact, place = self._contact_at(address), Endpoint(address, channel)
        self.carrier = Carrier(server, place, settings, memory=True, connected=connected)
        self._early = Carrier(server, place, settings, memory=False)
        # Arrays that held earlier versions: the system would have to clear the pages of new ones. `append` and `pop`
        # of a list are atomic, so the reader may return an array without the turn.
        self._spare: list[NDArray[Any]] = []

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
        self.address, self._contact = address, self._contact_at(address)
        for carrier in (self.carrier, self._early):
            carrier.move(Endpoint(address, channel))

    def close(self) -> None:
        """Break off the requests under way. Any thread may call this."""
        for carrier in (self.carrier, self._early):
            carrier.close()

    @property
    def encoder(self) -> Encoder:
        """The encoder of this membership's payloads, for the training loop's thread."""
        return self._member.encoder

    @property
    def arena_versions(self) -> int:
        """Versions that a server with shared memory holds at once; 0 without shared memory."""
        attachment = self.carrier.attachment
        return attachment.arena_versions if attachment is not None else 0

    @property
    def fetches_apart(self) -> bool:
        """Whether what is fetched ahead has a carrier of its own. Groups of rows that take turns come on the first
        one, which knows the groups that are here."""
        decided = self.carrier.kind not in ("undecided", "shared-memory")
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
        carrier = self._early if ahead and self.fetches_apart else self.carrier

        def ask() -> Received:
            carrier.agree(member, after)
            base = member.base(carrier.known)
            answer = carrier.ask(member.pull(ticket, version, after, base=base, rows=rows))
            return self._received(carrier, member, answer, ticket, version, narrow, rows)

        return self._insist(ask, carrier)

    def pull_rows(self, ticket: int, version: int, after: int, rows: WantedRows) -> ReceivedRows:
        """Return rows of tables at a granted version; with ticket 0 at the server's newest.

        Raises Voided when the version is gone, Refused, Unreachable.
        """
        member = self._member_with(ticket) if ticket else self._member
        if not counts_of(rows):
            return nothing(self._settings.plan, rows, version)

        def ask() -> ReceivedRows:
            self.carrier.agree(member, after)
            answer = self.carrier.ask(member.pull(ticket, version, after, rows=rows, rows_only=True))
            return self._received_rows(self.carrier, answer, rows, version if ticket else answer[0].version)

        return self._insist(ask)

    def pull_slots(self, count: int, version: int, after: int) -> Floats:
        """Return `count` slots of the optimizer at `version` or a later one, shape (count, trainable elements).

        Raises Refused, Unreachable.
        """
        values = np.empty((count, self._layout.trainable), np.float32)
        self._whole(version, after, FLOAT32, lambda nbytes: values.reshape(-1), slots=True)
        return values

    def pull_table(self, number: int, version: int, after: int) -> NDArray[np.uint8]:
        """Return the server's part of table `number` (from 0) at `version` or a later one, as it travels.

        Raises Refused, Unreachable.
        """
        return self._whole(
            version, after, OCTETS, lambda nbytes: np.empty(nbytes, np.uint8), table=number + 1
        )

    def _whole(
        self, version: int, after: int, codec: Elementwise, out: Callable[[int], NDArray[Any]], **what: Any
    ) -> NDArray[Any]:
        """Receive what a request of `MemberRequests.whole` asks for into what `out` makes for its bytes."""
        member, carrier = self._member, self.carrier

        def ask() -> NDArray[Any]:
            carrier.agree(member, after)
            answer = carrier.ask([[member.whole(version, after, **what)]])
            values = out(answer[0].bytes)
            carrier.payload(answer, codec, values)
            return values

        return self._insist(ask)

    def _received_rows(
        self, carrier: Carrier, answer: Answer, rows: WantedRows, version: int
    ) -> ReceivedRows:
        tables = self._settings.plan.tables
        form = RowFormat(tables, row_codec(self._wire.down), tuple(keys.size for keys in rows))
        data = carrier.rows(answer, form.answer_nbytes)
        return ReceivedRows(rows, form.decode_answer(data), version)

    def _received(
        self,
        carrier: Carrier,
        member: MemberRequests,
        answer: Answer,
        ticket: int,
        version: int,
        narrow: bool,
        rows: WantedRows = (),
    ) -> Received:
        """Receive a version, and the rows behind it."""
        first = answer[0]
        if first.HasField("located"):
            if carrier.attachment is None:
                raise SessionError("the server named memory that is not shared")
            found = carrier.attachment.receive(first.located, ticket)
        else:
            values = self._array(narrow)
            known = member.known or carrier.known
            carrier.version(answer, version, self._wire.down, values, known)
            found = Received(values, spare=self._spare)
        if first.row_bytes:
            found.rows = self._received_rows(carrier, answer, rows, version)
        return found

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
        part = None if raw else member.part(version, values)

        def ask() -> Answer:
            self.carrier.agree(member, after)
            return self._send(member, ticket, values, after, part=part, raw=raw, rows=rows)

        reply, _ = self._insist(ask)
        return bytes(reply.receipt)

    def step(
        self,
        ticket: int,
        payload: Payload,
        after: int,
        commit: Commit,
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
        part = self._member_with(ticket).part(version, values)

        def ask() -> CommitAnswer:
            member = self._member_with(ticket)
            self._agree_to_commit(member, after)
            answer = self._send(member, ticket, values, after, commit, part=part, rows=rows, ahead=ahead)
            now, events, granted = _noticed(answer)
            if granted is None:
                return CommitAnswer(events, now, None, None)
            along = self._version_along(member, answer, granted, narrow, ahead)
            return CommitAnswer(events, now, granted.ticket, along)

        return self._insist(ask)

    def commit(self, after: int, commit: Commit) -> CommitAnswer:
        """Commit what all servers have given receipts for, in a round trip that may bring the next grant.

        Only to server 0. Raises as `step`.
        """

        def ask() -> CommitAnswer:
            member = self._member_with(commit.ticket)
            self._agree_to_commit(member, after)
            now, events, _ = _noticed(self.carrier.ask([[member.commit(commit)]]))
            return CommitAnswer(events, now, None, None)

        return self._insist(ask)

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
            facts = granted.ticket, granted.version, narrow, ahead
            return self._received(self.carrier, member, answer, *facts)
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
        *,
        part: GroupPart | None = None,
        raw: bool = False,
        rows: Rows = (),
        ahead: WantedRows = (),
    ) -> Answer:
        """Push in the shared slot if there is one, else in chunks, and return the answer's beginning."""
        carrier, attachment = self.carrier, self.carrier.attachment
        request = member.push(ticket, after, commit, member.base(carrier.known))
        header, behind = request.push, member.behind(request.push, rows, ahead)
        if attachment is not None:
            attachment.fill(values)
            header.dtype, header.bytes = FLOAT32.number, values.nbytes
            return carrier.ask(messages(request, (), behind))
        array = np.ascontiguousarray(array_of(values))
        codec = FLOAT32 if raw and self._wire.up.scaled else self._wire.up
        encoder = member.encoder if codec is self._wire.up else codec.encoder(self._layout)
        pieces = encoder.pieces(ticket, array, part)
        header.dtype, header.bytes = codec.number, codec.size(self._layout if part is None else part.layout)
        try:
            # A piece is encoded while the kernel sends the one before it.
            return carrier.ask(messages(request, pieces, behind))
        except NotFinite as error:
            raise PayloadRefused(f"payload of ticket {ticket}: {error}") from error

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
        settings = self._settings
        return MemberRequests(joined, encoder, settings.plan, self.server, self._wire, settings.session)

    def _contact_at(self, address: Address) -> Contact | None:
        """None without TLS: this worker could join, so it knows that the servers use none."""
        credentials = self._settings.credentials
        return Contact(address, credentials) if credentials.encrypted else None

    def _agree_to_commit(self, member: MemberRequests, after: int) -> None:
        """Connect the first carrier. A worker that is no member any more tries again: an earlier try may have counted,
        which the session learns when it joins again."""
        try:
            self.carrier.agree(member, after)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.ABORTED:
                raise CallEnded(grpc.StatusCode.UNAVAILABLE, f"{error.details()}: wait") from error
            raise

    def _insist(self, ask: Callable[[], T], carrier: Carrier | None = None) -> T:
        """Return `ask()`, repeated while the server does not answer."""
        settings = self._settings
        with (carrier or self.carrier).turn:
            backoff = Backoff(
                self.server,
                self.address,
                settings.patience,
                self._closing,
                self._contact,
                settings.silent,
                self._seek,
            )
            return insist(ask, backoff)


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
