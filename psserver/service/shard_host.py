"""One shard made safe for many threads: its lock, its waits, and who executes orders."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import grpc

from psserver.fast import FastBackend
from psserver.optimizers import Optimizer
from psserver.policies import TensorParts
from psserver.receipts import receipt
from psserver.service.rpc import Refused, invalid, precondition
from psserver.service.sharing import Sharing, Words
from psserver.shard import Apply, Order, Shard
from psserver.shard.arena import Version
from psserver.shard.shard import Work
from psserver.shard.staging import Loan, Slot
from pswire.plan import Plan
from pswire.segments import Place

log = logging.getLogger("ps-server")

# Between looks at the words of workers that read in place, while an update waits for them; seconds.
LOOK_EVERY = 0.001


@dataclass(frozen=True, slots=True)
class HostOptions:
    """`lease`: seconds that an unread grant may hold up an update. `patience`: how long a
    reader or a pusher waits for this shard to catch up with the log. `threads`: of an update."""

    arena_versions: int = 3
    staging: int = 4
    lease: float = 5.0
    patience: float = 30.0
    threads: int = 1
    transport: str = "auto"


class ShardHost:
    """A shard, the job that it serves, and how far it has executed the log.

    Orders are submitted in log order. They are executed by the submitting
    thread if nobody else is at it (an update of a small model then costs no
    thread switch), else by the thread that runs `run_executor`. That one also
    takes over an update that must wait for readers.
    """

    def __init__(self, server: int, options: HostOptions) -> None:
        self.server = server
        self.options = options
        self.job = ""
        self.secret = b""
        self.shard: Shard | None = None
        # Entries [0, executed) of the log are executed.
        self.executed = 0
        self.failure: str | None = None
        self.closed = False
        self._changed = threading.Condition()
        self._executing = threading.Lock()
        # The executor has something to do. It does not listen to `_changed`: to be woken at every
        # change, and to fight for the lock then, would cost a small step a fifth of its time.
        self._left = threading.Event()
        self._queue: deque[tuple[int, Order]] = deque()
        self._backend = FastBackend(options.threads)
        self.sharing = Sharing(options.transport)
        # Who reads in place, by ticket.
        self._readers: dict[int, Words] = {}

    # The job

    def open(self, job: str, secret: bytes) -> None:
        with self._changed:
            self.job, self.secret = job, secret

    def configure(self, plan: Plan, optimizer: Optimizer, tensors: TensorParts) -> None:
        """A new shard. Its loops are compiled from now on; until they are, numpy gives the same bits."""
        with self._changed:
            self.shard = Shard(
                plan,
                self.server,
                optimizer,
                versions=self.options.arena_versions,
                staging=self.options.staging,
                tensors=tensors,
                backend=self._backend,
                allocate=self.sharing.allocate,
            )
            variants = self.shard.variants
        self._backend.prepare(variants)

    @property
    def nbytes(self) -> int:
        return self.shard.layout.nbytes if self.shard else 0

    @property
    def elements(self) -> int:
        """Of a payload."""
        return self.shard.layout.elements if self.shard else 0

    def close(self) -> None:
        """No more orders; whoever waits is refused."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()
        self._left.set()
        self._backend.close()

    # Orders

    def submit(self, orders: Iterable[tuple[int, Order]]) -> None:
        """Queue orders; they carry the indices that follow on what was submitted before."""
        self._queue.extend(orders)

    def execute_submitted(self, *, patient: bool = True) -> None:
        """Execute what is queued now, unless another thread is at it; that one, or the executor, goes on.

        Not `patient`: leave an update that must wait for readers to the executor. The caller may be what
        they wait for: a worker's next version, granted ahead, comes by the stream that its commit is on.
        """
        try:
            last = self._queue[-1][0]
        except IndexError:
            return
        if last >= self.executed and self._executing.acquire(blocking=False):
            try:
                while self._queue and self._queue[0][0] <= last and (patient or not self._must_wait()):
                    self._next()
            finally:
                self._executing.release()
        if self._queue:
            self._left.set()

    def run_executor(self) -> None:
        """Execute whatever nobody else does, until closed."""
        while not self.closed:
            self._left.wait()
            self._left.clear()
            with self._executing:
                while self._queue:
                    self._next()

    def _must_wait(self) -> bool:
        """The first order is an update for which readers leave no buffer."""
        order = self._queue[0][1]
        if not isinstance(order, Apply):
            return False
        with self._changed:
            if self.shard is None or not self.shard.blocked(order):
                return False
            self._end_reads(self.shard)
            return self.shard.blocked(order)

    def _next(self) -> None:
        index, order = self._queue[0]
        if self.failure is None:
            try:
                self._execute(index, order)
            except Exception as error:
                log.exception("entry %d of the decision log cannot be executed", index)
                with self._changed:
                    self.failure = f"server {self.server} cannot execute entry {index}: {error}"
                    self._changed.notify_all()
        self._queue.popleft()

    def _execute(self, index: int, order: Order) -> None:
        with self._changed:
            shard = self.shard
            work = self._prepared(shard, order) if shard is not None else None
            if work is None:
                self._executed(shard, index)
                return
        work.compute()
        with self._changed:
            work.finish()
            self._executed(shard, index)

    def _prepared(self, shard: Shard, order: Order) -> Work | None:
        self._wait_for_buffer(shard, order)
        return shard.prepare(order)

    def _executed(self, shard: Shard | None, index: int) -> None:
        if shard is not None:
            self._end_reads(shard)
        self.executed = index + 1
        self._changed.notify_all()

    def _wait_for_buffer(self, shard: Shard, order: Order) -> None:
        """An update waits for readers of old versions, but no longer than their lease."""
        self._end_reads(shard)
        deadline = time.monotonic() + self.options.lease
        while shard.blocked(order) and not self.closed:
            left = deadline - time.monotonic()
            if left <= 0:
                self._take_back(shard)
                return
            # A worker that reads in place wakes nobody when it has read.
            self._changed.wait(min(left, LOOK_EVERY) if self._readers else left)
            self._end_reads(shard)

    def _take_back(self, shard: Shard) -> None:
        log.warning(
            "tickets %s did not read their version within %.1f s: taken back, they will be granted again",
            ", ".join(map(str, shard.arena.holders())) or "of slow readers",
            self.options.lease,
        )
        shard.arena.evict()

    def _end_reads(self, shard: Shard) -> None:
        """Unpin what workers say that they have read."""
        if not self._readers:
            return
        for ticket in [t for t, reader in self._readers.items() if reader.has_read(t)]:
            shard.arena.unpin(ticket)
        self._readers = {t: self._readers[t] for t in shard.arena.in_place}

    # Workers

    def serving(self, job: str, plan: str, after: int) -> Shard:
        """The shard, once it has executed entry `after`. Raises Refused for another job or plan."""
        with self._changed:
            self._check_job(job)
            caught_up = self._wait(lambda: self.executed > after, self.options.patience)
            shard = self.shard
            if shard is None:
                raise precondition("no model yet: expected a worker to join the coordinator (task 0) first")
            if plan != shard.plan.fingerprint:
                raise precondition(f"expected plan {shard.plan.fingerprint}, got {plan!r}; join again")
            if not caught_up:
                raise Refused(
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                    f"server {self.server} has executed {self.executed} entries of the log, expected more than "
                    f"{after}; it waited {self.options.patience:g} s",
                )
            return shard

    def _check_job(self, job: str) -> None:
        if not self.job:
            self._wait(lambda: bool(self.job), self.options.patience)
        if job != self.job:
            raise precondition(
                f"expected job {self.job!r}, got {job!r}: this server serves another job; join again"
            )

    def _wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        self._changed.wait_for(lambda: condition() or self.closed or bool(self.failure), seconds)
        if self.failure is not None:
            raise Refused(grpc.StatusCode.INTERNAL, self.failure)
        if self.closed and not condition():
            raise Refused(grpc.StatusCode.UNAVAILABLE, f"server {self.server} is shutting down")
        return condition()

    def begin_push(
        self,
        shard: Shard,
        ticket: int,
        worker: str,
        alive: Callable[[], bool],
        lend: Callable[[], Loan] | None = None,
    ) -> Slot:
        """A slot for the ticket's payload, as soon as memory admits it; the one that `lend` gives, if any."""
        with self._changed:
            while True:
                refusal = shard.refusal(ticket, worker)
                if refusal is not None:
                    raise Refused(grpc.StatusCode.ABORTED, refusal)
                if shard.staging.admits(ticket):
                    return self._begin(shard, ticket, lend() if lend is not None else None)
                if not alive():
                    raise Refused(grpc.StatusCode.CANCELLED, "the worker has gone")
                self._wait(lambda: shard.refusal(ticket) is not None or shard.staging.admits(ticket), 1.0)

    def _begin(self, shard: Shard, ticket: int, loan: Loan | None) -> Slot:
        try:
            return shard.begin(ticket, loan)
        except MemoryError as error:
            message = f"server {self.server} has no memory for a payload of {shard.layout.nbytes} bytes"
            raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, message) from error

    def finish_push(self, shard: Shard, slot: Slot) -> bytes:
        """The payload is complete and finite: the receipt."""
        with self._changed:
            if not shard.staging.finish(slot):
                refusal = shard.refusal(slot.ticket) or "its payload came too late"
                raise Refused(grpc.StatusCode.ABORTED, refusal)
            self._changed.notify_all()
            return receipt(self.secret, self.job, slot.ticket, self.server)

    def give_up_push(self, shard: Shard, slot: Slot) -> None:
        with self._changed:
            shard.staging.give_up(slot)
            self._changed.notify_all()

    def start_read(self, shard: Shard, ticket: int, version: int) -> Version:
        """The version, kept until `end_read`. Raises Refused (ABORTED) when it is gone."""
        with self._changed:
            if ticket == 0:
                self._wait(lambda: shard.version >= version, self.options.patience)
            found = shard.arena.start_read(version)
            if found is None:
                newest = shard.version
                if version > newest:
                    raise invalid(f"version {version} does not exist yet; the newest is {newest}")
                raise Refused(
                    grpc.StatusCode.ABORTED,
                    f"version {version} is gone (its lease of {self.options.lease:g} s is over, or ticket {ticket} "
                    f"is settled); the newest is {newest}: ask for a new grant",
                )
            return found

    def read_in_place(
        self, shard: Shard, ticket: int, version: int, reader: Words
    ) -> tuple[Place, list[Place]] | None:
        """Where the version lies that the ticket has pinned, and where others may; None if it must be copied."""
        with self._changed:
            self._end_reads(shard)
            if reader.has_read(ticket):
                # It said so, and the pin has ended or may end at any time.
                return None
            values = shard.arena.values(version)
            place = self.sharing.place(values) if values is not None else None
            if place is None or shard.arena.read_in_place(ticket, version) is None:
                return None
            if not self._readers:
                # An update that waits for this version must look for the word that it is read.
                self._changed.notify_all()
            self._readers[ticket] = reader
            return place, self.sharing.places(shard.arena.arrays)

    def still_readable(self, shard: Shard, version: Version) -> bool:
        return shard.arena.values(version.number) is version.values

    def end_read(self, shard: Shard, ticket: int, version: Version, *, complete: bool) -> None:
        with self._changed:
            if complete:
                shard.arena.unpin(ticket)
            shard.arena.end_read(version)
            self._changed.notify_all()

    def wait_executed(self, count: int, seconds: float) -> bool:
        """True once `count` entries are executed; False after `seconds` or when closed or failed."""
        deadline = time.monotonic() + seconds
        with self._changed:
            self._changed.wait_for(
                lambda: self.executed >= count or self.closed or self.failure is not None,
                max(0.0, deadline - time.monotonic()),
            )
            return self.executed >= count
