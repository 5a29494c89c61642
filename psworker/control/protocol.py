"""What one session said to the coordinator, what it heard, and what it still has to say."""

from collections import deque

from pswire.v1 import coordinator_pb2 as pb
from psworker.control.messages import (
    Disposition,
    Grant,
    StopNotice,
    disposition_from_wire,
    grant_from_wire,
    stop_from_wire,
)
from psworker.errors import Refused, SessionError

Requests = list[pb.SessionRequest]

KEPT_DISPOSITIONS = 4096


class SessionProtocol:
    """No thread, lock or stream: `Control` has those, and sends what the methods return.

    What was said and not answered stays in `owed`, to be said again on a new
    stream: the coordinator counts it once.
    """

    def __init__(self) -> None:
        self.stop: StopNotice | None = None
        self.error: SessionError | None = None
        # Ready was said since the newest grant.
        self.asked = False
        # There is no more data here.
        self.exhausted = False
        self._grants: deque[Grant] = deque()
        # The newest that was heard; None before the first.
        self._newest: Grant | None = None
        # Of the commit that an exchange makes: whether it comes to that, only the exchange tells.
        self._exchanged: int | None = None
        self._unanswered: dict[int, pb.Commit] = {}
        self._awaited: set[int] = set()
        # Abandoned, and not yet known to have been heard.
        self._abandoned: dict[int, str] = {}
        # Granted to the training loop, and neither committed nor abandoned by it.
        self._held: int | None = None
        self._void: dict[int, str] = {}
        self._dispositions: deque[Disposition] = deque(maxlen=KEPT_DISPOSITIONS)

    # Saying

    def ask(self) -> Requests:
        """Ready, unless said already. Raises SessionError while a ticket is open."""
        if self._held is not None and self._held not in self._void and self.stop is None:
            raise SessionError(
                f"ready while ticket {self._held} is open: expected its commit or abandon first"
            )
        if self.asked or self._grants or self.stop is not None:
            return []
        self.asked = True
        return [_ready()]

    @property
    def answered(self) -> bool:
        """A caller that asked need not wait any longer."""
        return bool(self._grants) or self.stop is not None or self.error is not None

    def begin(self) -> Grant | None:
        """The grant that came; None: the job has stopped."""
        if self.stop is not None:
            return None
        grant = self._grants.popleft()
        self._held = grant.ticket
        return grant

    def ask_ahead(self, ticket: int) -> Requests:
        """Ready, while `ticket` is worked on; nothing if the next one is here, or not wanted."""
        if self.after(ticket) is not None or self.exhausted:
            return []
        return [pb.SessionRequest(ready=pb.Ready(holding=ticket))]

    def after(self, ticket: int) -> Grant | None:
        """The newest grant, if it is a later one than that of `ticket`."""
        return self._newest if self._newest is not None and self._newest.ticket > ticket else None

    def expect(self, message: pb.Commit) -> None:
        """A commit is being made. It asks for nothing that was granted ahead."""
        self._held = None
        self._exchanged = message.ticket
        message.ready = message.ready and not self._grants
        self._unanswered[message.ticket] = message
        self._awaited.add(message.ticket)
        self.asked = message.ready

    def unexpect(self, ticket: int) -> None:
        """It was refused before it was made."""
        self._held, self._exchanged = ticket, None
        self._unanswered.pop(ticket, None)
        self._awaited.discard(ticket)
        self.asked = False

    def commit(self, message: pb.Commit) -> Requests:
        """Nothing for one that was expected, and answered by the session since: it would be answered twice."""
        if message.ticket == self._exchanged and message.ticket not in self._unanswered:
            return []
        if message.ticket not in self._void:
            self.expect(message)
            self._exchanged = None
            return [pb.SessionRequest(commit=message)]
        # Cancelled in the meantime: there is nothing to commit to.
        self._held = None
        message.ready = message.ready and not self._grants
        if not message.ready:
            return []
        self.asked = True
        return [_ready()]

    def abandon(self, ticket: int, reason: str) -> Requests:
        self._held = None
        if self._void.pop(ticket, None) is not None:
            return []
        self._abandoned[ticket] = reason
        return [_abandon(ticket, reason)]

    def finish(self) -> Requests:
        self.exhausted = True
        return [_done()]

    def owed(self) -> Requests:
        """What may not have been heard, to be said again."""
        requests = [_abandon(ticket, reason) for ticket, reason in self._abandoned.items()]
        commits = [message for message in self._unanswered.values() if message.ticket != self._exchanged]
        requests += [pb.SessionRequest(commit=message) for message in commits]
        # Said although a commit above may say it too: asking twice gives one ticket.
        if self.asked and self._exchanged not in self._unanswered:
            requests.append(_ready())
        if self.exhausted:
            requests.append(_done())
        return requests

    # Knowing

    def raise_error(self) -> None:
        if self.error is not None:
            raise self.error

    def void(self, ticket: int) -> str | None:
        """Why a granted ticket is no longer valid; None while it is."""
        return self._void.get(ticket)

    def dispositions(self) -> list[Disposition]:
        """Each is told once."""
        found = list(self._dispositions)
        self._dispositions.clear()
        return found

    # Hearing

    def given_up(self, reason: str) -> None:
        """The coordinator had given this worker up: a clean slate, its old tickets are void."""
        for ticket in self._awaited:
            self._dispositions.append(Disposition(ticket, "unknown", reason=reason))
        self._void = {} if self._held is None else {self._held: reason}
        self._grants.clear()
        self._unanswered.clear()
        self._awaited.clear()
        self._abandoned.clear()

    def hear(self, event: pb.SessionEvent, now: float = 0.0) -> None:
        """Any event but a stream's welcome, heard at `now`."""
        match event.WhichOneof("event"):
            case "grant":
                self._granted(grant_from_wire(event.grant, now))
            case "cancel":
                self._cancelled(event.cancel.ticket, event.cancel.reason)
            case "disposition":
                self._settle(disposition_from_wire(event.disposition))
            case "stop":
                self.stop = stop_from_wire(event.stop)
            case "refusal":
                self._refused(event.refusal)

    def _granted(self, grant: Grant) -> None:
        # After a reconnection grants are told again.
        if self._newest is not None and grant.ticket <= self._newest.ticket:
            return
        self._newest = grant
        self._void = {t: reason for t, reason in self._void.items() if t == self._held}
        self.asked = False
        self._grants.append(grant)

    def _cancelled(self, ticket: int, reason: str) -> None:
        self._void[ticket] = reason
        # One that was granted ahead is not begun.
        self._grants = deque(g for g in self._grants if g.ticket != ticket)
        self._abandoned.pop(ticket, None)

    def _settle(self, disposition: Disposition) -> None:
        self._unanswered.pop(disposition.ticket, None)
        self._abandoned.pop(disposition.ticket, None)
        if disposition.fate != "pending" and disposition.ticket in self._awaited:
            self._awaited.discard(disposition.ticket)
            self._dispositions.append(disposition)

    def _refused(self, refusal: pb.Refusal) -> None:
        if refusal.fatal:
            self.error = Refused(refusal.message)
        else:
            self._unanswered.pop(refusal.ticket, None)
            self._awaited.discard(refusal.ticket)
            self.error = SessionError(refusal.message)


def _ready() -> pb.SessionRequest:
    return pb.SessionRequest(ready=pb.Ready())


def _abandon(ticket: int, reason: str) -> pb.SessionRequest:
    return pb.SessionRequest(abandon=pb.Abandon(ticket=ticket, reason=reason))


def _done() -> pb.SessionRequest:
    return pb.SessionRequest(done=pb.Done())
