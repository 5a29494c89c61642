"""The session stream: what is said to the coordinator and heard from it, across reconnections."""

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator

import grpc

from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import coordinator_pb2_grpc
from psworker.errors import Refused, SessionError
from psworker.grants import (
    Disposition,
    Grant,
    StopNotice,
    disposition_from_wire,
    grant_from_wire,
    stop_from_wire,
)
from psworker.retrying import PASSING, Backoff, translated

log = logging.getLogger("ps-worker")

Sender = queue.SimpleQueue[pb.SessionRequest | None]

KEPT_DISPOSITIONS = 4096


class Control:
    """Keeps one session stream open and its state.

    Whatever was said and not answered is said again after a reconnection: the
    coordinator counts it once. A new incarnation (the coordinator had given
    this worker up) starts with a clean slate: its old tickets are void.
    """

    def __init__(
        self, channel: grpc.Channel, join: Callable[[], pb.JoinReply], session: str, backoff: Backoff
    ) -> None:
        self.reply = join()
        self._join = join
        self._session = session
        self._backoff = backoff
        self._stub = coordinator_pb2_grpc.CoordinatorStub(channel)
        self._changed = threading.Condition()
        self._sender: Sender | None = None
        self._grants: deque[Grant] = deque()
        self._highest = 0
        self._asked = False
        self._done = False
        self._unanswered: dict[int, pb.Commit] = {}
        self._awaited: set[int] = set()
        # Abandoned, and not yet known to have been heard.
        self._abandoned: dict[int, str] = {}
        # Granted to the training loop, and neither committed nor abandoned by it.
        self._held: int | None = None
        self._void: dict[int, str] = {}
        self._dispositions: deque[Disposition] = deque(maxlen=KEPT_DISPOSITIONS)
        self._error: SessionError | None = None
        self._conversed = False
        self.stop: StopNotice | None = None
        self._thread = threading.Thread(target=self._run, name="session", daemon=True)
        self._thread.start()

    # Saying

    def ask(self) -> Grant | None:
        """Say ready, unless said already, and wait. None: the job has stopped. Raises SessionError."""
        with self._changed:
            self._raise_error()
            if self._held is not None and self._held not in self._void and self.stop is None:
                raise SessionError(
                    f"ready while ticket {self._held} is open: expected its commit or abandon first"
                )
            if not self._asked and not self._grants and self.stop is None:
                self._asked = True
                self._say(pb.SessionRequest(ready=pb.Ready()))
            self._changed.wait_for(lambda: self._grants or self.stop or self._error)
            self._raise_error()
            if self.stop is not None:
                return None
            grant = self._grants.popleft()
            self._held = grant.ticket
            return grant

    def expect(self, message: pb.Commit) -> None:
        """The commit is on its way by an exchange: `hear` or `commit` will follow."""
        with self._changed:
            self._raise_error()
            self._held = None
            self._unanswered[message.ticket] = message
            self._awaited.add(message.ticket)
            self._asked = message.ready

    def unexpect(self, ticket: int) -> None:
        """The exchange was refused before the commit was made."""
        with self._changed:
            self._held = ticket
            self._unanswered.pop(ticket, None)
            self._awaited.discard(ticket)
            self._asked = False

    def hear(self, events: Iterable[pb.SessionEvent]) -> None:
        """Events that came by an exchange instead of the session stream."""
        with self._changed:
            for event in events:
                self._hear(event, self._sender)
            self._changed.notify_all()

    @property
    def hello(self) -> pb.Hello:
        """Who this is, as every stream says first."""
        reply = self.reply
        return pb.Hello(
            job=reply.job, worker=reply.worker, incarnation=reply.incarnation, session=self._session
        )

    def commit(self, message: pb.Commit) -> None:
        with self._changed:
            self._raise_error()
            self._held = None
            if message.ticket in self._void:
                # Cancelled in the meantime: there is nothing to commit to.
                if message.ready:
                    self._asked = True
                    self._say(pb.SessionRequest(ready=pb.Ready()))
                return
            self._unanswered[message.ticket] = message
            self._awaited.add(message.ticket)
            self._asked = message.ready
            self._say(pb.SessionRequest(commit=message))

    def abandon(self, ticket: int, reason: str) -> None:
        with self._changed:
            self._raise_error()
            self._held = None
            if self._void.pop(ticket, None) is None:
                self._abandoned[ticket] = reason
                self._say(pb.SessionRequest(abandon=pb.Abandon(ticket=ticket, reason=reason)))

    def done(self) -> None:
        with self._changed:
            self._raise_error()
            self._done = True
            self._say(pb.SessionRequest(done=pb.Done()))

    def wait_stop(self) -> StopNotice:
        """Wait for the end of the job. Raises SessionError."""
        with self._changed:
            self._changed.wait_for(lambda: self.stop or self._error)
            if self.stop is None:
                self._raise_error()
            assert self.stop is not None
            return self.stop

    def report(self, message: pb.Report) -> None:
        with self._changed:
            self._say(pb.SessionRequest(report=message))

    def leave(self, reason: str) -> None:
        """Say goodbye and close the stream."""
        self._backoff.closing.set()
        with self._changed:
            self._say(pb.SessionRequest(leave=pb.Leave(reason=reason)))
            if self._sender is not None:
                self._sender.put(None)
        self._thread.join(timeout=5.0)

    # Knowing

    def void(self, ticket: int) -> str | None:
        """Why a granted ticket is no longer valid; None while it is."""
        with self._changed:
            return self._void.get(ticket)

    def dispositions(self) -> list[Disposition]:
        with self._changed:
            found = list(self._dispositions)
            self._dispositions.clear()
            return found

    # The stream

    def _say(self, request: pb.SessionRequest) -> None:
        # Without a stream nothing is lost: _resume says what is still owed.
        if self._sender is not None:
            self._sender.put(request)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._backoff.closing.is_set():
                try:
                    self._converse()
                    if self._over():
                        return
                    log.info("the coordinator closed the session; joining again")
                    self._backoff.closing.wait(0.1)
                except grpc.RpcError as error:
                    if self._over():
                        return
                    if error.code() == grpc.StatusCode.FAILED_PRECONDITION:
                        # Given up before this stream stood. Join says whether this worker may come back.
                        log.info("%s; joining again", error.details())
                        self._backoff.closing.wait(0.1)
                        continue
                    if error.code() not in (*PASSING, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN):
                        raise translated(error, f"server 0 at {self._backoff.address}") from error
                    self._backoff.wait(error)
        except SessionError as error:
            self._fail(error)

    def _over(self) -> bool:
        """Nothing is to be said or heard any more."""
        return self._error is not None or self.stop is not None or self._backoff.closing.is_set()

    def _fail(self, error: SessionError) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _converse(self) -> None:
        """One stream, from hello to its end."""
        if self._conversed:
            self._rejoin()
        self._conversed = True
        sender: Sender = queue.SimpleQueue()
        sender.put(pb.SessionRequest(hello=self.hello))
        try:
            for reply in self._stub.Session(_drained(sender)):
                with self._changed:
                    for event in reply.events:
                        self._hear(event, sender)
                    self._changed.notify_all()
        finally:
            sender.put(None)
            with self._changed:
                self._sender = None

    def _rejoin(self) -> None:
        before = self.reply
        self.reply = self._join()
        if (self.reply.job, self.reply.incarnation) == (before.job, before.incarnation):
            return
        if self.reply.job != before.job:
            raise Refused(f"the servers started another job ({self.reply.job}, before {before.job})")
        with self._changed:
            reason = "the coordinator had given this worker up"
            log.warning("joined again as incarnation %d: %s", self.reply.incarnation, reason)
            for ticket in self._awaited:
                self._dispositions.append(Disposition(ticket, "unknown", reason=reason))
            self._void = {self._highest: reason}
            self._grants.clear()
            self._unanswered.clear()
            self._awaited.clear()
            self._abandoned.clear()

    def _hear(self, event: pb.SessionEvent, sender: Sender | None) -> None:
        match event.WhichOneof("event"):
            case "welcome":
                self._sender = sender
                self._backoff.reset()
                self._resume()
            case "grant":
                grant = grant_from_wire(event.grant)
                # After a reconnection grants are told again.
                if grant.ticket > self._highest:
                    self._highest = grant.ticket
                    self._void.clear()
                    self._asked = False
                    self._grants.append(grant)
            case "cancel":
                self._void[event.cancel.ticket] = event.cancel.reason
                self._abandoned.pop(event.cancel.ticket, None)
            case "disposition":
                self._settle(disposition_from_wire(event.disposition))
            case "stop":
                self.stop = stop_from_wire(event.stop)
            case "refusal":
                self._refused(event.refusal)

    def _resume(self) -> None:
        """Say again what may not have been heard."""
        for ticket, reason in self._abandoned.items():
            self._say(pb.SessionRequest(abandon=pb.Abandon(ticket=ticket, reason=reason)))
        for message in self._unanswered.values():
            self._say(pb.SessionRequest(commit=message))
        # Said although a commit above may say it too: asking twice gives one ticket.
        if self._asked:
            self._say(pb.SessionRequest(ready=pb.Ready()))
        if self._done:
            self._say(pb.SessionRequest(done=pb.Done()))

    def _settle(self, disposition: Disposition) -> None:
        self._unanswered.pop(disposition.ticket, None)
        self._abandoned.pop(disposition.ticket, None)
        if disposition.fate != "pending" and disposition.ticket in self._awaited:
            self._awaited.discard(disposition.ticket)
            self._dispositions.append(disposition)

    def _refused(self, refusal: pb.Refusal) -> None:
        if refusal.fatal:
            self._error = Refused(refusal.message)
        else:
            self._unanswered.pop(refusal.ticket, None)
            self._awaited.discard(refusal.ticket)
            self._error = SessionError(refusal.message)


def _drained(sender: Sender) -> Iterator[pb.SessionRequest]:
    while (request := sender.get()) is not None:
        yield request
