"""One shard made safe for many threads: its lock, its waits, and what workers push to it and read of it."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from psserver.fast import FastBackend
from psserver.optimizers import Optimizer
from psserver.policies import TensorParts
from psserver.receipts import receipt
from psserver.service.executor import Executor
from psserver.service.rpc.registration import Refused, invalid, precondition
from psserver.service.transport.shared_memory import Sharing, Words
from psserver.shard import Shard
from psserver.shard.arena import Version
from psserver.shard.staging import BorrowedBuffer, Slot
from pswire.plan import Plan
from pswire.transport.segments import Place


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

    `orders` executes it. `changed` guards everything here but the heavy half
    of an order, and is notified of whatever a thread may wait for.
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
        self.changed = threading.Condition()
        self.orders = Executor(self)
        self._backend = FastBackend(options.threads)
        self.sharing = Sharing(options.transport)
        # Who reads in place, by ticket.
        self._readers: dict[int, Words] = {}

    # The job

    def open(self, job: str, secret: bytes) -> None:
        with self.changed:
            self.job, self.secret = job, secret

    def configure(self, plan: Plan, optimizer: Optimizer, tensors: TensorParts) -> None:
        """A new shard. Its loops are compiled from now on; until they are, numpy gives the same bits."""
        with self.changed:
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
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        self.orders.wake()
        self._backend.close()

    # Workers

    def serving(self, job: str, plan: str, after: int) -> Shard:
        """The shard, once it has executed entry `after`. Raises Refused for another job or plan."""
        with self.changed:
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
        self.changed.wait_for(lambda: condition() or self.closed or bool(self.failure), seconds)
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
        lend: Callable[[], BorrowedBuffer] | None = None,
    ) -> Slot:
        """A slot for the ticket's payload, as soon as memory admits it; the one that `lend` gives, if any."""
        with self.changed:
            while True:
                refusal = shard.refusal(ticket, worker)
                if refusal is not None:
                    raise Refused(grpc.StatusCode.ABORTED, refusal)
                if shard.staging.admits(ticket):
                    return self._begin(shard, ticket, lend() if lend is not None else None)
                if not alive():
                    raise Refused(grpc.StatusCode.CANCELLED, "the worker has gone")
                self._wait(lambda: shard.refusal(ticket) is not None or shard.staging.admits(ticket), 1.0)

    def _begin(self, shard: Shard, ticket: int, loan: BorrowedBuffer | None) -> Slot:
        try:
            return shard.begin(ticket, loan)
        except MemoryError as error:
            message = f"server {self.server} has no memory for a payload of {shard.layout.nbytes} bytes"
            raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, message) from error

    def finish_push(self, shard: Shard, slot: Slot) -> bytes:
        """The payload is complete and finite: the receipt."""
        with self.changed:
            if not shard.staging.finish(slot):
                refusal = shard.refusal(slot.ticket) or "its payload came too late"
                raise Refused(grpc.StatusCode.ABORTED, refusal)
            self.changed.notify_all()
            return receipt(self.secret, self.job, slot.ticket, self.server)

    def give_up_push(self, shard: Shard, slot: Slot) -> None:
        with self.changed:
            shard.staging.give_up(slot)
            self.changed.notify_all()

    def start_read(self, shard: Shard, ticket: int, version: int) -> Version:
        """The version, kept until `end_read`. Raises Refused (ABORTED) when it is gone."""
        with self.changed:
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
        with self.changed:
            self.end_reads(shard)
            if reader.has_read(ticket):
                # It said so, and the pin has ended or may end at any time.
                return None
            values = shard.arena.values(version)
            place = self.sharing.place(values) if values is not None else None
            if place is None or shard.arena.read_in_place(ticket, version) is None:
                return None
            if not self._readers:
                # An update that waits for this version must look for the word that it is read.
                self.changed.notify_all()
            self._readers[ticket] = reader
            return place, self.sharing.places(shard.arena.arrays)

    def end_reads(self, shard: Shard) -> None:
        """Unpin what workers say that they have read. Hold `changed`."""
        if not self._readers:
            return
        for ticket in [t for t, reader in self._readers.items() if reader.has_read(t)]:
            shard.arena.unpin(ticket)
        self._readers = {t: self._readers[t] for t in shard.arena.in_place}

    @property
    def reading(self) -> bool:
        """Somebody reads in place, and wakes nobody when it has read."""
        return bool(self._readers)

    def still_readable(self, shard: Shard, version: Version) -> bool:
        return shard.arena.values(version.number) is version.values

    def end_read(self, shard: Shard, ticket: int, version: Version, *, complete: bool) -> None:
        with self.changed:
            if complete:
                shard.arena.unpin(ticket)
            shard.arena.end_read(version)
            self.changed.notify_all()

    def wait_executed(self, count: int, seconds: float) -> bool:
        """True once `count` entries are executed; False after `seconds` or when closed or failed."""
        deadline = time.monotonic() + seconds
        with self.changed:
            self.changed.wait_for(
                lambda: self.executed >= count or self.closed or self.failure is not None,
                max(0.0, deadline - time.monotonic()),
            )
            return self.executed >= count
