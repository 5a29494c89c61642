"""The session stream to the coordinator, across reconnections."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator

import grpc

from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import coordinator_pb2_grpc
from psworker.control.backoff import PASSING, Backoff, translated
from psworker.control.messages import Disposition, Grant, StopNotice
from psworker.control.protocol import Requests, SessionProtocol
from psworker.errors import Refused, SessionError, Unreachable, Voided

log = logging.getLogger("ps-worker")

Sender = queue.SimpleQueue[pb.SessionRequest | None]


class Control:
    """Keeps one session stream open, in a thread of its own; the training loop talks and waits.

    `SessionProtocol` decides what to say, and what to say again after a
    reconnection. A new incarnation (the coordinator had given this worker up)
    starts with a clean slate.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        join: Callable[[], pb.JoinReply],
        session: str,
        backoff: Backoff,
        pointless: threading.Event,
    ) -> None:
        """`pointless` is set as soon as no payload is of use any more: the job or this session has failed."""
        self.reply = join()
        self._join = join
        self._session = session
        self._backoff = backoff
        self._pointless = pointless
        self._stub = coordinator_pb2_grpc.CoordinatorStub(channel)
        # Guards what follows; notified when something was heard.
        self._changed = threading.Condition()
        self._talk = SessionProtocol()
        self._sender: Sender | None = None
        self._conversed = False
        self._leaving: pb.Leave | None = None
        self._thread = threading.Thread(target=self._run, name="session", daemon=True)
        self._thread.start()

    # Saying

    def ask(self) -> Grant | None:
        """Say ready, unless said already, and wait. None: the job has stopped. Raises SessionError."""
        with self._changed:
            while True:
                self._talk.raise_error()
                self._say(self._talk.ask())
                if self._talk.answered:
                    return self._talk.begin()
                # Neither asked nor answered: a cancel came close behind the grant, and took it back.
                self._changed.wait_for(lambda: self._talk.answered or not self._talk.asked)

    def foresee(self, ticket: int) -> Grant | None:
        """While `ticket` is worked on: ask for the next one ahead, and wait until it is granted, if not before that
        ticket's commit, then by it. `ask` hands it out. None: the job has stopped, or the session ends.
        """
        talk = self._talk
        with self._changed:
            self._say(talk.ask_ahead(ticket))
            self._changed.wait_for(
                lambda: (
                    talk.after(ticket)
                    or talk.stop
                    or talk.error
                    or talk.exhausted
                    or self._backoff.closing.is_set()
                )
            )
            return talk.after(ticket)

    def expect(self, message: pb.Commit) -> None:
        """The commit is on its way by an exchange: `hear` or `commit` will follow. It asks for nothing that
        was granted ahead."""
        with self._changed:
            self._talk.raise_error()
            self._talk.expect(message)

    def unexpect(self, ticket: int) -> None:
        """The exchange was refused before the commit was made."""
        with self._changed:
            self._talk.unexpect(ticket)

    def hear(self, events: Iterable[pb.SessionEvent], heard: float) -> None:
        """Events that came by an exchange instead of the session stream, at `heard` of the monotonic clock."""
        with self._changed:
            self._hear_all(events, self._sender, heard)

    @property
    def hello(self) -> pb.Hello:
        """Who this is, as every stream says first."""
        reply = self.reply
        return pb.Hello(
            job=reply.job, worker=reply.worker, incarnation=reply.incarnation, session=self._session
        )

    def commit(self, message: pb.Commit) -> None:
        with self._changed:
            self._talk.raise_error()
            self._say(self._talk.commit(message))

    def abandon(self, ticket: int, reason: str) -> None:
        with self._changed:
            self._talk.raise_error()
            self._say(self._talk.abandon(ticket, reason))

    def done(self) -> None:
        with self._changed:
            self._talk.raise_error()
            self._say(self._talk.finish())
            self._changed.notify_all()

    def wait_stop(self) -> StopNotice:
        """Wait for the end of the job. Raises SessionError."""
        with self._changed:
            self._changed.wait_for(lambda: self._talk.stop or self._talk.error)
            if self._talk.stop is None:
                self._talk.raise_error()
            assert self._talk.stop is not None
            return self._talk.stop

    def report(self, message: pb.Report) -> None:
        with self._changed:
            self._say([pb.SessionRequest(report=message)])

    def leave(self, reason: str) -> None:
        """Say goodbye and close the stream. Threads that wait here are woken."""
        self._backoff.closing.set()
        with self._changed:
            self._leaving = pb.Leave(reason=reason)
            self._take_leave()
            self._changed.notify_all()
        self._thread.join(timeout=5.0)
        if not self._talk.stop and not self._talk.error:
            self._fail(SessionError("the session is closed"))

    # Knowing

    @property
    def stop(self) -> StopNotice | None:
        """Set once the job is over."""
        return self._talk.stop

    def void(self, ticket: int) -> str | None:
        """Why a granted ticket is no longer valid; None while it is."""
        with self._changed:
            return self._talk.void(ticket)

    def dispositions(self) -> list[Disposition]:
        with self._changed:
            return self._talk.dispositions()

    def explained(self, error: Unreachable) -> SessionError:
        """What to say of a server that does not answer: that the job is over, if it is. Servers end with their
        coordinator: while that is out of reach too, wait for what becomes of it."""
        with self._changed:
            self._changed.wait_for(lambda: self._sender is not None or self._over())
            if self._talk.stop is not None and self._failed:
                return Voided(f"the job is over: {self._talk.stop.reason}")
            return self._talk.error or error

    # The stream

    def _say(self, requests: Requests) -> None:
        # Without a stream nothing is lost: what is owed is said when there is one.
        if self._sender is not None:
            for request in requests:
                self._sender.put(request)

    def _take_leave(self) -> None:
        """At once, or when the stream that is being opened stands."""
        if self._leaving is not None and self._sender is not None:
            self._sender.put(pb.SessionRequest(leave=self._leaving))
            self._sender.put(None)

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
        return self._talk.error is not None or self._talk.stop is not None or self._backoff.closing.is_set()

    def _fail(self, error: SessionError) -> None:
        with self._changed:
            self._talk.error = error
            self._pointless.set()
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
                heard = time.monotonic()
                with self._changed:
                    self._hear_all(reply.events, sender, heard)
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
            self._talk.given_up(reason)

    def _hear_all(self, events: Iterable[pb.SessionEvent], sender: Sender | None, heard: float) -> None:
        for event in events:
            self._hear(event, sender, heard)
        if self._talk.error is not None or self._failed:
            self._pointless.set()
        self._changed.notify_all()

    @property
    def _failed(self) -> bool:
        """The job is over, and the servers end without it having come to anything."""
        return self._talk.stop is not None and not self._talk.stop.success

    def _hear(self, event: pb.SessionEvent, sender: Sender | None, heard: float) -> None:
        if event.HasField("welcome"):
            self._sender = sender
            self._backoff.reset()
            self._say(self._talk.owed())
            self._take_leave()
        else:
            self._talk.hear(event, heard)


def _drained(sender: Sender) -> Iterator[pb.SessionRequest]:
    while (request := sender.get()) is not None:
        yield request
