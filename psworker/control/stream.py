"""The session with the coordinator: joined, and kept open across reconnections."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

import grpc

from pswire.logs.events import event
from pswire.messages import EVENTS, REQUESTS
from pswire.protocol import received
from pswire.transport.connecting import stub_of
from pswire.transport.failures import may_pass, method_failed
from pswire.v1 import coordinator_pb2 as pb
from psworker.control.backoff import Backoff, bounded, translated
from psworker.control.joined import Joined
from psworker.engine import ClientEngine, Commit, Disposition, Event, Grant, Request, Stop
from psworker.errors import RolledBack, SessionError, Unreachable, Voided

log = logging.getLogger("ps-worker")

Sender = queue.SimpleQueue[pb.SessionRequest | None]


class Control:
    """Keeps one session stream open, in a thread of its own; the training loop sends and waits.

    `ClientEngine` decides what to send, and what to send again after a
    reconnection. A new incarnation (the coordinator had given this worker up)
    remembers nothing of the one before.

    `_lock` guards the engine, `_sender`, `_told`, `_failure`, `_leaving` and `_waiting`. What is `joined` and the
    engine's `stop` are replaced whole by one thread, and read by any. The session's thread alone joins again and uses
    `_ever_opened`.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        join: Callable[[int], pb.JoinReply],
        admit: Callable[[pb.JoinReply], None],
        session: str,
        backoff: Backoff,
        pointless: Callable[[], object],
        *,
        numbered: bool = True,
    ) -> None:
        """`admit` is called with every answer of `join`, once the tickets of another membership are void. `pointless`
        is called as soon as no payload is of use any more: the job or this session has failed. `numbered`: what is
        committed are batches of this worker's own data."""
        self._join, self._admit = join, admit
        reply = join(0)
        self.joined = Joined(reply, session, numbered=numbered)
        admit(reply)
        self._backoff = backoff
        self._pointless = pointless
        self._stub = stub_of(channel)
        # Notified when something that it guards has changed and somebody waits for it: `_waiting` threads.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self._engine = ClientEngine()
        # Of the stream that stands; None while there is none.
        self._sender: Sender | None = None
        # What it has said last of itself, for the status.
        self._told: dict[str, pb.SessionRequest] = {}
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
                # Neither asked nor answered: a cancel came close behind the grant, and took it back.
                self._wait_for(lambda: engine.answered or self._failure or not engine.asked)

    def wait_next_grant(self, ticket: int) -> Grant | None:
        """While `ticket` is worked on: ask for the next one ahead, and wait until it is granted, if not before that
        ticket's commit, then by it. `wait_grant` hands it out. None: the job has stopped, or the session ends.
        """
        engine = self._engine
        with self._lock:
            self._send(engine.ready_ahead(ticket))
            self._wait_for(lambda: engine.after(ticket) or engine.exhausted or self._over())
            return engine.after(ticket)

    def begin_commit(self, commit: Commit) -> Commit:
        """The commit that an exchange shall carry: `receive`, `commit` or `rollback_commit` follows."""
        with self._lock:
            if self._failure is not None or self._engine.refusal is not None:
                self._raise_error()
            return self._engine.begin_commit(commit)

    def rollback_commit(self, ticket: int) -> None:
        """The exchange was refused before the commit was made."""
        with self._lock:
            self._engine.rollback_commit(ticket)

    def receive(self, events: Iterable[Event]) -> None:
        """Events that came by an exchange instead of the session stream."""
        with self._lock:
            for event in events:
                self._engine.receive(event)
            self._after_events()

    def commit(self, commit: Commit) -> None:
        with self._lock:
            self._raise_error()
            self._send(self._engine.commit(commit))

    def abandon(self, ticket: int, reason: str, *, unit_ends: bool = False) -> None:
        with self._lock:
            self._raise_error()
            self._send(self._engine.abandon(ticket, reason, unit_ends=unit_ends))

    def done(self, ends: str = "") -> None:
        with self._lock:
            self._raise_error()
            self._send(self._engine.done(ends))
            self._notify()

    def over_within(self, seconds: float) -> bool:
        """Has the job stopped, or does it so soon? Raises SessionError for a session that has failed."""
        with self._changed:
            self._changed.wait_for(lambda: self._engine.stop or self._error, timeout=seconds)
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

    def report(self, version: int, metrics: Mapping[str, float]) -> None:
        with self._lock:
            self._send(self._engine.report(version, metrics))

    def tell_extent(self, epochs: int, batches: int) -> None:
        self._tell("extent", pb.SessionRequest(extent=pb.Extent(epochs=epochs, batches=batches)))

    def tell_carriers(self, kinds: Iterable[str]) -> None:
        """How payloads travel to each server: of `psworker.data.transport.TRANSPORTS`."""
        numbers = [pb.Carrier.Value("CARRIER_" + kind.upper().replace("-", "_")) for kind in kinds]
        self._tell("carriers", pb.SessionRequest(carriers=pb.Carriers(carriers=numbers)))

    def _tell(self, what: str, request: pb.SessionRequest) -> None:
        """For the status: now, and on every later stream."""
        with self._lock:
            self._told[what] = request
            if self._sender is not None:
                self._sender.put(request)

    def leave(self, reason: str) -> None:
        """Send the last message and close the stream. Threads that wait here are woken."""
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
        """Set once the job is over."""
        return self._engine.stop

    def void(self, ticket: int) -> str | None:
        """Why a granted ticket is no longer valid; None while it is."""
        with self._lock:
            return self._engine.void.get(ticket)

    @property
    def dropped(self) -> int:
        """The last ticket of which it was said that its commit is dropped; 0: of none."""
        with self._lock:
            return self._engine.pending.dropped

    def dispositions(self, ticket: int | None = None) -> list[Disposition]:
        """What became of commits. `ticket`: wait first until its commit is answered, if nothing was granted ahead."""
        engine = self._engine
        with self._lock:
            if ticket is not None:
                self._wait_for(
                    lambda: (
                        ticket not in engine.pending.commits
                        or engine.after(ticket)
                        or engine.rolled_back
                        or self._over()
                    )
                )
            return engine.dispositions()

    def explained(self, error: Unreachable) -> SessionError:
        """Why a server does not answer: because the job is over, if it is. Servers end with their coordinator: while
        that is out of reach too, wait for what becomes of it."""
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
        """The job is over, and the servers end without a result."""
        return self._engine.stop is not None and not self._engine.stop.success

    def _over(self) -> bool:
        """Nothing is to be sent or received any more."""
        return self._error is not None or self._engine.stop is not None or self._backoff.closing.is_set()

    def _fail(self, error: SessionError) -> None:
        with self._lock:
            self._failure = error
            self._pointless()
            self._notify()

    def _wait_for(self, condition: Callable[[], object]) -> None:
        """Hold the lock."""
        self._waiting += 1
        try:
            self._changed.wait_for(condition)
        finally:
            self._waiting -= 1

    def _notify(self) -> None:
        """Hold the lock. In most steps nobody waits."""
        if self._waiting:
            self._changed.notify_all()

    # The stream

    def _send(self, requests: Iterable[Request]) -> None:
        # Without a stream nothing is lost: what is owed is sent when there is one.
        if self._sender is not None:
            for request in requests:
                self._sender.put(REQUESTS.to_wire(request))
            if self._leaving:
                self._sender.put(None)

    def _run(self) -> None:
        try:
            # A session that was closed before this thread began opens its stream all the same: to say that it leaves.
            while not (self._ever_opened and self._backoff.closing.is_set()):
                try:
                    self._run_stream()
                    if self._over():
                        return
                    told = event("session_closed")
                    log.info("the coordinator closed the session; joining again", extra=told)
                    self._backoff.closing.wait(0.1)
                except grpc.RpcError as error:
                    if self._over():
                        return
                    if error.code() == grpc.StatusCode.FAILED_PRECONDITION:
                        # Given up before this stream stood. Join says whether this worker may come back.
                        log.info("%s; joining again", error.details(), extra=event("session_refused"))
                        self._backoff.closing.wait(0.1)
                        continue
                    if not (may_pass(error) or method_failed(error)):
                        raise translated(error, f"server 0 at {self._backoff.address}") from error
                    self._backoff.wait(error)
        except SessionError as error:
            self._fail(error)
        except Exception as error:
            # The training loop must not wait for a thread that has ended. A session that closes closes its channel.
            if not self._backoff.closing.is_set():
                told = event("session_failed", worker=self.joined.reply.worker)
                log.exception("the session failed", extra=told)
            self._fail(SessionError(f"the session failed: {type(error).__name__}: {error}"))

    def _run_stream(self) -> None:
        """One stream, from hello to its end."""
        if self._ever_opened:
            self._rejoin()
        self._ever_opened = True
        sender: Sender = queue.SimpleQueue()
        sender.put(pb.SessionRequest(hello=self.joined.hello))
        try:
            for reply in self._stub.Session(_drained(sender)):
                received_at = time.monotonic()
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
        reply = self._join(used)
        if self.joined.is_another(reply):
            with self._lock:
                self.joined.renew(self._engine, reply)
                self._notify()
        self.joined.take(reply)
        # From now on payloads go out in the new name; those of tickets before it are void by now.
        self._admit(reply)

    def _receive_all(self, messages: Iterable[pb.SessionEvent], sender: Sender, received_at: float) -> None:
        for message in messages:
            told = EVENTS.from_wire(message)
            if told is not None:
                self._engine.receive(received(told, received_at))
            elif message.HasField("welcome"):
                self._sender = sender
                for request in self._told.values():
                    sender.put(request)
                self._backoff.reset()
                self._send(self._engine.owed())
        self._after_events()

    def _after_events(self) -> None:
        engine = self._engine
        if engine.refusal is not None or (engine.stop is not None and self._job_failed):
            self._pointless()
        self._notify()


def _drained(sender: Sender) -> Iterator[pb.SessionRequest]:
    while (request := sender.get()) is not None:
        yield request
