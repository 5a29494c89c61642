"""The session stream with the coordinator, kept open across reconnections."""

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import grpc

from pswire import running
from pswire.logs.events import event
from pswire.messages import EVENTS, REQUESTS
from pswire.patience import UNKNOWN_TIMEOUT, longest_pause
from pswire.protocol import received
from pswire.transport.connecting import stub_of
from pswire.transport.failures import may_pass, method_failed
from pswire.v1 import coordinator_pb2 as pb
from psworker.control.backoff import Backoff, bounded, translated
from psworker.control.joining import JoinedMember, Registration
from psworker.engine import ClientEngine, Commit, Disposition, Event, Grant, Stop, StreamRequest
from psworker.errors import RolledBack, SessionError, Voided

log = logging.getLogger("ps-worker")

Sender = queue.SimpleQueue[pb.SessionRequest | None]


class SessionStream:
    """Joins, and keeps one session stream open, in a thread of its own. The training loop sends and waits.

    `ClientEngine` decides what to send, and what to send again after a reconnection. A new incarnation (after the
    coordinator had given this worker up) inherits nothing from the former one.

    `_lock` guards the engine, `_sender`, `_announced`, `_failure`, `_leaving` and `_waiting`. One thread replaces
    `joined`'s fields and the engine's `stop` as a whole, and any thread reads them. Only the session's thread joins
    again and uses `_ever_opened`.
    """

    def __init__(
        self,
        channel: Callable[[], grpc.Channel],
        registration: Registration,
        admit: Callable[[pb.JoinReply], None],
        backoff: Backoff,
        pointless: Callable[[], object],
        *,
        numbered: bool = True,
    ) -> None:
        """`channel`: returns the control channel, which is another one after `admit`. `admit`: called with every
        answer to Join, after the tickets of a former membership became void. `pointless`: called when payloads are of
        no use any more, because the job or this session has failed. `numbered`: as of `JoinedMember`."""
        self._registration, self._admit = registration, admit
        reply = registration.join()
        self.joined = JoinedMember(reply, registration.session, numbered=numbered)
        admit(reply)
        self._backoff = backoff
        backoff.longest_pause = longest_pause(reply.worker_timeout or UNKNOWN_TIMEOUT)
        self._pointless = pointless
        self.stub = registration.stub = stub_of(channel())
        # Notified when something that the lock guards has changed, if any of the `_waiting` threads waits for it.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self._engine = ClientEngine()
        # The open stream's; None without a stream.
        self._sender: Sender | None = None
        # By kind: the newest messages for the status, sent again on every stream.
        self._announced: dict[str, pb.SessionRequest] = {}
        # Why this end gave up, if it did.
        self._failure: SessionError | None = None
        self._ever_opened = False
        self._leaving = False
        self._thread = threading.Thread(target=self._run, name="session", daemon=True)
        self._thread.start()

    # For the training loop

    def wait_grant(self) -> Grant | None:
        """Ask for the next ticket, unless that was done, and wait. None: the job has stopped. Raises SessionError."""
        engine = self._engine
        with self._lock:
            while True:
                if self._failure is not None or engine.refusal is not None:
                    self._raise_error()
                if engine.rolled_back:
                    self._raise_rolled_back()
                self._send(engine.ready())
                if engine.answered:
                    return engine.take_grant()
                # Not asked and not answered: a cancel came close behind the grant, and took it back.
                self._wait_for(lambda: engine.answered or self._failure or not engine.asked)

    def ask_ahead(self, ticket: int) -> None:
        """Ask for the grant after that of `ticket`, which is being worked on."""
        with self._lock:
            self._send(self._engine.ready_ahead(ticket))

    def wait_next_grant(self, ticket: int) -> Grant | None:
        """Wait for the grant after that of `ticket`, which was asked for; `wait_grant` returns it again.

        It comes no later than with the ticket's commit. None: the job has stopped, or the session ends.
        """
        engine = self._engine
        with self._lock:
            self._wait_for(lambda: engine.after(ticket) or engine.exhausted or self._over())
            return engine.after(ticket)

    def tell(self, requests: Callable[[ClientEngine], Sequence[StreamRequest]]) -> None:
        """Give the engine one input, and send the messages that it returns. Raises SessionError."""
        with self._lock:
            self._raise_error()
            self._send(requests(self._engine))
            self._notify()

    def commit(self, commit: Commit) -> Commit:
        """Return the commit to send to server 0. `answered_commit` or `take_back` follows."""
        with self._lock:
            if self._failure is not None or self._engine.refusal is not None:
                self._raise_error()
            return self._engine.commit(commit)

    def take_back(self, ticket: int) -> bool:
        """Give up sending the commit of the ticket. Returns whether the ticket is in hand again; else it counted."""
        with self._lock:
            return self._engine.take_back(ticket)

    def answered_commit(self, ticket: int, events: Sequence[Event]) -> bool:
        """Take the answer to the commit of the ticket. Returns whether the ticket is in hand again, void."""
        with self._lock:
            in_hand = self._engine.answered_commit(ticket, events)
            self._after_events()
            return in_hand

    def over_within(self, seconds: float) -> bool:
        """Whether the job has stopped, or does so within `seconds`. Raises SessionError if the session has failed."""
        with self._lock:
            self._wait_for(lambda: self._engine.stop or self._error, seconds)
            if self._engine.stop is None:
                self._raise_error()
            return self._engine.stop is not None

    def wait_stop(self) -> Stop:
        """Wait for the end of the job. Raises SessionError."""
        with self._lock:
            self._wait_for(lambda: self._engine.stop or self._error or self._engine.rolled_back)
            if self._engine.stop is None:
                self._raise_error()
                self._raise_rolled_back()
            assert self._engine.stop is not None
            return self._engine.stop

    def announce(self, kind: str, request: pb.SessionRequest) -> None:
        """Send a message for the status now, and again on every later stream."""
        with self._lock:
            self._announced[kind] = request
            if self._sender is not None:
                self._sender.put(request)

    def announce_transports(self, kinds: Iterable[str]) -> None:
        """Send how payloads travel to each server: one of `psworker.connection.TRANSPORTS` each."""
        numbers = [pb.Carrier.Value("CARRIER_" + kind.upper().replace("-", "_")) for kind in kinds]
        self.announce("carriers", pb.SessionRequest(carriers=pb.Carriers(carriers=numbers)))

    def report(self, version: int, metrics: Mapping[str, float]) -> None:
        """Send metrics of a version, once. Ignored after the session has failed."""
        with self._lock:
            self._send(self._engine.report(version, metrics))

    def leave(self, reason: str) -> None:
        """Send the last message, close the stream, and wake waiting threads."""
        self._backoff.closing.set()
        with self._lock:
            self._leaving = True
            self._send(self._engine.leave(reason))
            self._notify()
        self._thread.join(timeout=5.0)
        with self._lock:
            if self._engine.stop is None and self._error is None:
                self._fail(SessionError("the session is closed"))

    # State

    @property
    def stop(self) -> Stop | None:
        """Set when the job is over."""
        return self._engine.stop

    def void(self, ticket: int) -> str | None:
        """Return why a granted ticket is no longer valid; None while it is."""
        with self._lock:
            return self._engine.void.get(ticket)

    @property
    def dropped(self) -> int:
        """The newest ticket whose commit is known to be dropped; 0 for none."""
        with self._lock:
            return self._engine.pending.dropped

    def dispositions(self) -> list[Disposition]:
        """Return what became of commits."""
        with self._lock:
            return self._engine.dispositions()

    def explained(self, error: SessionError) -> SessionError:
        """Return why a server does not answer, or refuses: possibly because the job is over, or is another one.

        Servers end with their coordinator, so this waits while the coordinator is unreachable, too.
        """
        with self._lock:
            self._wait_for(lambda: self._sender is not None or self._over())
            if self._engine.stop is not None and self._job_failed:
                return Voided(f"the job is over: {self._engine.stop.reason}")
            return self._error or error

    @property
    def _error(self) -> SessionError | None:
        return self._failure or self._engine.error

    def _raise_error(self) -> None:
        error = self._error
        if error is not None:
            raise error

    def _raise_rolled_back(self) -> None:
        if self._engine.take_rollback():
            reply = self.joined.reply
            raise RolledBack(f"{self.joined.reason}: {reply.worker} goes on at batch {reply.next_batch}")

    @property
    def _job_failed(self) -> bool:
        """Whether the job is over and the servers end without a result."""
        return self._engine.stop is not None and not self._engine.stop.success

    def _over(self) -> bool:
        """Whether there is nothing to send or receive any more."""
        return self._error is not None or self._engine.stop is not None or self._backoff.closing.is_set()

    def _fail(self, error: SessionError) -> None:
        with self._lock:
            self._failure = error
            self._pointless()
            self._notify()

    def _wait_for(self, condition: Callable[[], object], seconds: float | None = None) -> None:
        """Hold the lock."""
        self._waiting += 1
        try:
            self._changed.wait_for(condition, seconds)
        finally:
            self._waiting -= 1

    def _notify(self) -> None:
        """Hold the lock. In most steps no thread waits."""
        if self._waiting:
            self._changed.notify_all()

    # The stream

    def _send(self, requests: Iterable[StreamRequest]) -> None:
        # Nothing is lost without a stream: the next one begins with what is owed.
        if self._sender is not None:
            for request in requests:
                self._sender.put(REQUESTS.to_wire(request))
            if self._leaving:
                self._sender.put(None)

    def _run(self) -> None:
        closing = self._backoff.closing
        try:
            # A session that was closed before this thread began still opens its stream, to send Leave.
            while not (self._ever_opened and closing.is_set()):
                try:
                    self._run_stream()
                    if self._over():
                        return
                    log.info(
                        "the coordinator closed the session; joining again", extra=event("session_closed")
                    )
                    closing.wait(0.1)
                except grpc.RpcError as error:
                    if self._over():
                        return
                    if error.code() == grpc.StatusCode.FAILED_PRECONDITION:
                        # The coordinator gave this worker up before the stream stood. Join tells whether it may return.
                        log.info("%s; joining again", error.details(), extra=event("session_refused"))
                        closing.wait(0.1)
                        continue
                    if not (may_pass(error) or method_failed(error)):
                        raise translated(error, f"server 0 at {self._backoff.address}") from error
                    self._backoff.wait(error)
        except SessionError as error:
            self._fail(error)
        except Exception as error:
            # The training loop must not wait for a thread that has ended. A session that closes also closes its
            # channel, which raises here and is no fault.
            if not closing.is_set():
                fields = event("session_failed", worker=self.joined.reply.worker)
                log.exception("the session failed", extra=fields)
            self._fail(SessionError(f"the session failed: {type(error).__name__}: {error}"))

    def _run_stream(self) -> None:
        """Run one stream from its hello to its end."""
        if self._ever_opened:
            self._rejoin()
        self._ever_opened = True
        sender: Sender = queue.SimpleQueue()
        sender.put(pb.SessionRequest(hello=self.joined.hello))
        try:
            for reply in self.stub.Session(_until_none(sender)):
                received_at = running.system()
                events = bounded(reply).events
                with self._lock:
                    self._receive_all(events, sender, received_at)
        finally:
            sender.put(None)
            with self._lock:
                self._sender = None

    def _rejoin(self) -> None:
        with self._lock:
            used = self.joined.used(self._engine)
        reply = self._registration.join(used)
        with self._lock:
            another = self.joined.is_another(reply)
            if another:
                self.joined.renew(self._engine, reply)
            # Before the loop wakes: it goes on at the batch that this answer names.
            self.joined.take(reply)
            if another:
                self._notify()
        # From now on payloads carry the new membership. The tickets of the former one are void by now.
        self._admit(reply)

    def _receive_all(self, messages: Iterable[pb.SessionEvent], sender: Sender, received_at: float) -> None:
        for message in messages:
            known = EVENTS.from_wire(message)
            if known is not None:
                self._take(received(known, received_at))
            elif message.HasField("welcome"):
                self._sender = sender
                for request in self._announced.values():
                    sender.put(request)
                self._backoff.reset()
                self._send(self._engine.owed())
        self._after_events()

    def _take(self, happened: Event) -> None:
        self._engine.receive(happened)

    def _after_events(self) -> None:
        engine = self._engine
        if engine.refusal is not None or (engine.stop is not None and self._job_failed):
            self._pointless()
        self._notify()


def _until_none(sender: Sender) -> Iterator[pb.SessionRequest]:
    while (request := sender.get()) is not None:
        yield request
