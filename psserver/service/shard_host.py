"""One shard made safe for many threads: what workers push to it and read of it, and what they wait for."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from psserver.fast import FastBackend
from psserver.optimizers import Optimizer
from psserver.policies import TensorParts
from psserver.receipts import receipt
from psserver.service.executor import Executor
from psserver.service.limits.ledger import MIB, MemoryLedger, usual_limit
from psserver.service.limits.table import AWAITING, UNGRANTED
from psserver.service.limits.watch import Caller
from psserver.service.rpc.registration import Refused, invalid, precondition
from psserver.service.shard_state import ShardState
from psserver.service.transport.shared_memory import SLOTS, Sharing, Words
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
    # As of the job; how long a peer may stop in the middle of a payload.
    worker_timeout: float = 10.0
    # Bytes that models and members may take here; 0: a share of what the machine has.
    memory_limit: int = 0


class ShardHost:
    """A shard, and the job that it serves. `orders` executes the log.

    Any thread may call it. `state.changed` owns `job` and `secret`, too.
    """

    def __init__(self, server: int, options: HostOptions) -> None:
        self.server = server
        self.options = options
        self.job = ""
        self.secret = b""
        self.state = ShardState()
        self.orders = Executor(self.state, server, options.lease)
        self._backend = FastBackend(options.threads)
        self.sharing = Sharing(options.transport)
        # What each call that waits for the log wants executed, and reads under way of versions that nothing pins.
        self._awaited: dict[object, int] = {}
        self._ungranted = 0
        self.memory = MemoryLedger(options.memory_limit or usual_limit())
        # Who pushes each ticket's payload now, and what each member has attached.
        self._pushing: dict[int, Caller] = {}
        self._attached: dict[str, Caller] = {}

    # The job

    def open(self, job: str, secret: bytes) -> None:
        with self.state.changed:
            self.job, self.secret = job, secret

    def configure(self, plan: Plan, optimizer: Optimizer, tensors: TensorParts) -> None:
        """A new shard. Its loops are compiled from now on; until they are, numpy gives the same bits."""
        with self.state.changed:
            self._admit_model(plan, optimizer)
            shard = self.state.shard = Shard(
                plan,
                self.server,
                optimizer,
                versions=self.options.arena_versions,
                staging=self.options.staging,
                tensors=tensors,
                backend=self._backend,
                allocate=self.sharing.allocate,
            )
            variants = shard.variants
        self._backend.prepare(variants)

    def _admit_model(self, plan: Plan, optimizer: Optimizer) -> None:
        """Raises Refused, with the numbers, for a model that cannot fit: before any memory is asked for."""
        layout = plan.shards[self.server]
        versions, arrays = self.options.arena_versions, len(optimizer.slots)
        # And one payload on its way, without which nothing can be trained.
        need = (versions + 1) * layout.nbytes + 4 * arrays * layout.trainable
        if need > self.memory.limit:
            raise Refused(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"server {self.server} has no memory for this model: its part has {layout.nbytes / MIB:.1f} MiB, which "
                f"takes {need / MIB:.1f} MiB at least ({versions} versions, {arrays} arrays of {optimizer.name}, one "
                f"payload), and --memory-limit is {self.memory.limit / MIB:.1f} MiB",
            )
        self.memory.put("", "the model", need)

    def attach(self, worker: str, caller: Caller) -> str | None:
        """Make room for what `worker` attaches on its stream `caller`; or why there is none.

        A member has one attachment. Its older stream is cut, and given time to let go."""
        with self.state.changed:
            before = self._attached.get(worker)
            if before is not None:
                before.cut()
                if not self._wait(lambda: worker not in self._attached, self.options.patience):
                    return f"{worker} shares memory on another stream already"
            refusal = self.memory.take(worker, "shared slots", self._attachment_bytes)
            if refusal is None:
                self._attached[worker] = caller
            return refusal

    def detach(self, worker: str, caller: Caller) -> None:
        """The stream has let go of what was attached on it."""
        with self.state.changed:
            if self._attached.get(worker) is caller:
                del self._attached[worker]
                self.memory.give(worker, "shared slots", self.memory.of(worker).get("shared slots", 0))
                self.state.changed.notify_all()

    @property
    def _attachment_bytes(self) -> int:
        return SLOTS * self.nbytes

    @property
    def nbytes(self) -> int:
        """Of this server's part of the model; 0 before it is known."""
        return self.state.shard.layout.nbytes if self.state.shard else 0

    @property
    def elements(self) -> int:
        """Of a payload."""
        return self.state.shard.layout.elements if self.state.shard else 0

    def close(self) -> None:
        """No more orders; every waiting call is refused."""
        self.state.close()
        self.orders.wake()
        self._backend.close()

    # Workers

    def serving(self, job: str, plan: str, after: int) -> Shard:
        """The shard, once it has executed entry `after`. Raises Refused for another job or plan."""
        with self.state.changed:
            self._check_job(job)
            caught_up = self._caught_up(after)
            shard = self.state.shard
            if shard is None:
                raise precondition("no model yet: expected a worker to join the coordinator (task 0) first")
            if plan != shard.plan.fingerprint:
                raise precondition(f"expected plan {shard.plan.fingerprint}, got {plan!r}; join again")
            if not caught_up:
                raise Refused(
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                    f"server {self.server} has executed {self.state.executed} entries of the log, expected more than "
                    f"{after}; it waited {self.options.patience:g} s",
                )
            return shard

    def _caught_up(self, after: int) -> bool:
        """Wait for the log, among so many others at most: whoever wants what is farthest off is refused."""
        if self.state.executed > after:
            return self._wait(lambda: True, 0.0)
        call = object()
        self._awaited[call] = after
        if len(self._awaited) > AWAITING.value:
            del self._awaited[max(self._awaited, key=lambda other: self._awaited[other])]
            self.state.changed.notify_all()
        try:
            self._wait(
                lambda: self.state.executed > after or call not in self._awaited, self.options.patience
            )
            return self.state.executed > after
        finally:
            self._awaited.pop(call, None)

    @property
    def awaiting(self) -> int:
        """Calls that wait for the log."""
        return len(self._awaited)

    def _check_job(self, job: str) -> None:
        if not self.job:
            self._wait(lambda: bool(self.job), self.options.patience)
        if job != self.job:
            raise precondition(
                f"expected job {self.job!r}, got {job!r}: this server serves another job; join again"
            )

    def _wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        self.state.changed.wait_for(
            lambda: condition() or self.state.closed or bool(self.state.failure), seconds
        )
        if self.state.failure is not None:
            raise Refused(grpc.StatusCode.INTERNAL, self.state.failure)
        if self.state.closed and not condition():
            raise Refused(grpc.StatusCode.UNAVAILABLE, f"server {self.server} is shutting down")
        return condition()

    def begin_push(
        self,
        shard: Shard,
        ticket: int,
        worker: str,
        caller: Caller,
        lend: Callable[[], BorrowedBuffer] | None = None,
    ) -> Slot:
        """A slot for the ticket's payload, as soon as memory admits it; the one that `lend` gives, if any.

        A ticket has one payload on its way in: an older one, say of a connection that broke, is cut.
        """
        with self.state.changed:
            # Of several that wait, each finds the one before it.
            while (before := self._pushing.get(ticket)) is not None and shard.refusal(ticket, worker) is None:
                before.cut()
                if not self._wait(lambda: self._pushing.get(ticket) is not before, self.options.patience):
                    raise Refused(
                        grpc.StatusCode.UNAVAILABLE, f"another payload of ticket {ticket} is on its way in"
                    )
            while True:
                refusal = shard.refusal(ticket, worker)
                if refusal is not None:
                    raise Refused(grpc.StatusCode.ABORTED, refusal)
                if shard.staging.admits(ticket) and (lend is not None or self._room(shard)):
                    slot = self._begin(shard, ticket, lend() if lend is not None else None)
                    if lend is None:
                        self._pushing[ticket] = caller
                        self.memory.put("", "payloads", shard.staging.held * shard.layout.nbytes)
                    return slot
                if not caller.is_active():
                    raise Refused(grpc.StatusCode.CANCELLED, "the worker has gone")
                self._wait(lambda: shard.refusal(ticket) is not None or shard.staging.admits(ticket), 1.0)

    def _room(self, shard: Shard) -> bool:
        """Memory admits one more payload. The first one always: its room was asked for with the model's."""
        if shard.staging.held == 0:
            return True
        return self.memory.total + shard.layout.nbytes <= self.memory.limit

    def _pushed(self, shard: Shard, slot: Slot) -> None:
        self._pushing.pop(slot.ticket, None)
        self.memory.put("", "payloads", shard.staging.held * shard.layout.nbytes)

    def _begin(self, shard: Shard, ticket: int, loan: BorrowedBuffer | None) -> Slot:
        try:
            return shard.begin(ticket, loan)
        except MemoryError as error:
            message = f"server {self.server} has no memory for a payload of {shard.layout.nbytes} bytes"
            raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, message) from error

    def finish_push(self, shard: Shard, slot: Slot) -> bytes:
        """The payload is complete and finite: the receipt."""
        with self.state.changed:
            finished = shard.staging.finish(slot)
            self._pushed(shard, slot)
            if not finished:
                refusal = shard.refusal(slot.ticket) or "its payload came too late"
                raise Refused(grpc.StatusCode.ABORTED, refusal)
            self.state.received += 1
            self.state.changed.notify_all()
            return receipt(self.secret, self.job, slot.ticket, self.server)

    def give_up_push(self, shard: Shard, slot: Slot) -> None:
        with self.state.changed:
            shard.staging.give_up(slot)
            self._pushed(shard, slot)
            self.state.changed.notify_all()

    def start_read(self, shard: Shard, ticket: int, version: int) -> tuple[Version, bool]:
        """The version, kept until `end_read`, and whether the ticket has pinned it. Raises Refused (ABORTED) when it
        is gone."""
        with self.state.changed:
            if ticket == 0:
                self._wait(lambda: shard.version >= version, self.options.patience)
            granted = shard.arena.pinned(ticket, version)
            if not granted:
                self._admit_ungranted()
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
            self.state.served += 1
            self._ungranted += not granted
            return found, granted

    def _admit_ungranted(self) -> None:
        """Of versions that nothing pins there are few readers at once: they may each keep a buffer."""
        if not self._wait(lambda: self._ungranted < UNGRANTED.value, self.options.patience):
            raise Refused(
                grpc.StatusCode.UNAVAILABLE,
                f"server {self.server} has {self._ungranted} readers without a ticket already; try again",
            )

    def read_in_place(
        self, shard: Shard, ticket: int, version: int, reader: Words
    ) -> tuple[Place, list[Place]] | None:
        """Where the version lies that the ticket has pinned, and where others may; None if it must be copied."""
        with self.state.changed:
            self.state.end_reads(shard)
            if reader.has_read(ticket):
                # By its own word; the pin has ended or may end at any time.
                return None
            values = shard.arena.values(version)
            place = self.sharing.place(values) if values is not None else None
            if place is None or shard.arena.read_in_place(ticket, version) is None:
                return None
            self.state.begin_read(ticket, reader)
            self.state.served += 1
            return place, self.sharing.places(shard.arena.arrays)

    def still_readable(self, shard: Shard, version: Version) -> bool:
        return shard.arena.values(version.number) is version.values

    def end_read(self, shard: Shard, ticket: int, version: Version, *, granted: bool, complete: bool) -> None:
        with self.state.changed:
            self._ungranted -= not granted
            if complete and granted:
                self.orders.forgive(shard, ticket)
            if complete:
                shard.arena.unpin(ticket)
            shard.arena.end_read(version)
            self.state.changed.notify_all()

    def wait_executed(self, count: int, seconds: float) -> bool:
        """True once `count` entries are executed; False after `seconds` or when closed or failed."""
        deadline = time.monotonic() + seconds
        with self.state.changed:
            self.state.changed.wait_for(
                lambda: self.state.executed >= count or self.state.closed or self.state.failure is not None,
                max(0.0, deadline - time.monotonic()),
            )
            return self.state.executed >= count
