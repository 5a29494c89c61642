"""One shard made safe for many threads: what workers push to it and read of it, and what they wait for."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from psserver.fast import FastBackend
from psserver.optimizers import Optimizer
from psserver.policies import TensorParts
from psserver.receipts import Claim, receipt
from psserver.service.errors import MembershipOver, Refused, invalid, precondition
from psserver.service.limits.ledger import Picture, usual_limit
from psserver.service.limits.room import ShardMemory
from psserver.service.limits.table import AWAITING, UNGRANTED
from psserver.service.limits.watch import Caller
from psserver.service.shard.executor import Executor, Rehearsal
from psserver.service.shard.reads import Read, Reads
from psserver.service.shard.shared import SharedShard
from psserver.service.transport.shared_memory import SLOTS, Sharing, Words
from psserver.shard import Apply, Shard
from psserver.shard.staging import BorrowedBuffer, Slot
from pswire.model.plan import Plan
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

    Any thread may call it. `state.changed` owns `job`, `secret` and the pushes that wait, too.
    """

    def __init__(self, server: int, options: HostOptions) -> None:
        self.server = server
        self.options = options
        self.job = ""
        self.secret = b""
        self.state = SharedShard()
        self.orders = Executor(self.state, server, options.lease, self._end_reads_beyond)
        self._backend = FastBackend(options.threads)
        self.sharing = Sharing(options.transport)
        # What each call that waits for the log wants executed, and reads under way of versions that nothing pins.
        self._awaited: dict[object, int] = {}
        self._ungranted = 0
        self._reads = Reads()
        self.memory = ShardMemory(server, options.arena_versions, options.memory_limit or usual_limit())
        # On which stream each member has attached memory.
        self._attached: dict[str, Caller] = {}
        # Pushes so far, and the number of the newest that waits, by ticket.
        self._pushes = 0
        self._newest: dict[int, int] = {}

    # The job

    def open(self, job: str, secret: bytes) -> None:
        with self.state.changed:
            self.job, self.secret = job, secret

    def configure(self, plan: Plan, optimizer: Optimizer, tensors: TensorParts) -> None:
        """A new shard. Its loops are compiled from now on; until they are, numpy gives the same bits."""
        with self.state.changed:
            self.memory.admit(plan, optimizer, tensors)
            shard = self.state.shard = self.memory.shard = Shard(
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

    def memory_picture(self) -> Picture:
        """What is held here, and for whom."""
        with self.state.changed:
            return self.memory.ledger.picture()

    def attach(self, worker: str, caller: Caller) -> str | None:
        """Make room for what `worker` attaches on its stream `caller`; or why there is none.

        A member has one attachment. Its older stream is cut, and given time to let go."""
        with self.state.changed:
            before = self._attached.get(worker)
            if before is not None:
                before.cancel()
                if not self._wait(lambda: worker not in self._attached, self.options.patience):
                    return f"{worker} shares memory on another stream already"
            refusal = self.memory.take_slots(worker, SLOTS)
            if refusal is None:
                self._attached[worker] = caller
            return refusal

    def detach(self, worker: str, caller: Caller) -> None:
        """The stream has let go of what was attached on it."""
        with self.state.changed:
            if self._attached.get(worker) is caller:
                del self._attached[worker]
                self.memory.give_slots(worker)
                self.state.changed.notify_all()

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

    def serving(self, claim: Claim, plan: str, after: int) -> Shard:
        """The shard, once it has executed entry `after`.

        Raises Refused for another job or plan, and for who is no member; such a one waits for nothing, and
        learns nothing of the model.
        """
        with self.state.changed:
            self._check_job(claim.job)
            if not claim.proven(self.secret):
                raise Refused(
                    grpc.StatusCode.PERMISSION_DENIED,
                    f"expected the membership token that {claim.worker!r} was given when it joined, got another one",
                )
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
            if claim.worker and shard.members.get(claim.worker) != claim.incarnation:
                raise MembershipOver(
                    f"worker {claim.worker!r}, incarnation {claim.incarnation}, is no member any more; join again"
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

    def _check_reader(self, shard: Shard, ticket: int, worker: str) -> None:
        """A read ends the pin of its ticket: it must be the reader's own."""
        opened = shard.staging.tickets.get(ticket)
        if opened is not None and opened.worker != worker:
            raise Refused(
                grpc.StatusCode.ABORTED,
                f"ticket {ticket} is {opened.worker}'s: expected its read, got one of {worker!r}",
            )

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

        A push of the ticket that is under way is cut: its worker has begun anew.
        """
        with self.state.changed:
            self._pushes += 1
            mine = self._newest[ticket] = self._pushes
            try:
                self._wait_for_room(shard, ticket, worker, caller, mine, lent=lend is not None)
                slot = self._begin(shard, ticket, lend() if lend is not None else None, caller)
                return slot
            finally:
                if self._newest.get(ticket) == mine:
                    del self._newest[ticket]

    def _wait_for_room(
        self, shard: Shard, ticket: int, worker: str, caller: Caller, mine: int, *, lent: bool
    ) -> None:
        """`lent`: the payload lies somewhere already, and needs no memory here."""
        deadline = time.monotonic() + self.options.patience
        while True:
            refusal = shard.refusal(ticket, worker)
            if refusal is not None:
                raise Refused(grpc.StatusCode.ABORTED, refusal)
            if self._newest.get(ticket, mine) > mine or not caller.is_active():
                raise Refused(grpc.StatusCode.CANCELLED, "the worker has gone, or pushes the ticket anew")
            before = shard.staging.incoming(ticket)
            if before is None and shard.staging.admits(ticket) and (lent or self.memory.admits(ticket)):
                return
            if before is not None:
                before.cut()
                if time.monotonic() > deadline:
                    text = f"an earlier push of ticket {ticket} does not end"
                    raise Refused(grpc.StatusCode.UNAVAILABLE, text)
            self._wait(lambda seen=before: self._moved(shard, ticket, seen, mine, lent), 1.0)  # type: ignore[misc]

    def _moved(self, shard: Shard, ticket: int, seen: Slot | None, mine: int, lent: bool) -> bool:
        """A push of the ticket that found `seen` under way is to look again."""
        if shard.refusal(ticket) is not None or self._newest.get(ticket, mine) > mine:
            return True
        present = shard.staging.incoming(ticket)
        return present is not seen or (
            present is None and shard.staging.admits(ticket) and (lent or self.memory.admits(ticket))
        )

    def _begin(self, shard: Shard, ticket: int, borrowed: BorrowedBuffer | None, caller: Caller) -> Slot:
        try:
            return shard.begin(ticket, borrowed, caller.cancel)
        except MemoryError as error:
            message = f"server {self.server} has no memory for a payload of {shard.layout.nbytes} bytes"
            raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, message) from error

    def finish_push(self, shard: Shard, slot: Slot) -> bytes:
        """The payload is complete and finite: the receipt. Raises Refused when the ticket is closed, or has another."""
        with self.state.changed:
            taken = shard.staging.finish(slot)
            self.state.changed.notify_all()
            if not taken:
                refusal = shard.refusal(slot.ticket)
                if refusal is not None:
                    raise Refused(grpc.StatusCode.ABORTED, refusal)
                raise invalid(
                    f"payload of ticket {slot.ticket}: another one was accepted before; expected the same again, "
                    "a commit, or an abandon"
                )
            self.state.received += 1
            return receipt(self.secret, self.job, slot.ticket, self.server, ordinary=slot.ordinary)

    def give_up_push(self, shard: Shard, slot: Slot) -> None:
        with self.state.changed:
            shard.staging.give_up(slot)
            self.state.changed.notify_all()

    def start_read(
        self, shard: Shard, ticket: int, version: int, worker: str, caller: Caller | None = None
    ) -> tuple[Read, bool]:
        """A read of the version, which is kept until `end_read`, and whether the ticket has pinned it. Raises Refused
        (ABORTED) when it is gone, or another's ticket's. `caller`: whose read it is, to be cut when it holds too much.
        """
        with self.state.changed:
            self._check_reader(shard, ticket, worker)
            if ticket == 0:
                self._wait(lambda: shard.version >= version, self.options.patience)
            granted = shard.arena.pinned(ticket, version)
            if not granted:
                self._admit_ungranted()
            found = shard.arena.start_read(version, worker)
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
            return self._reads.begin(worker, found, caller), granted

    def _admit_ungranted(self) -> None:
        """Of versions that nothing pins there are few readers at once: they may each keep a buffer."""
        if not self._wait(lambda: self._ungranted < UNGRANTED.value, self.options.patience):
            raise Refused(
                grpc.StatusCode.UNAVAILABLE,
                f"server {self.server} has {self._ungranted} readers without a ticket already; try again",
            )

    def read_in_place(
        self, shard: Shard, ticket: int, version: int, worker: str, reader: Words
    ) -> tuple[Place, list[Place]] | None:
        """Where the version lies that the ticket has pinned, and where others may; None if it must be copied."""
        with self.state.changed:
            self._check_reader(shard, ticket, worker)
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

    def still_readable(self, shard: Shard, read: Read) -> bool:
        return shard.arena.values(read.version.number) is read.version.values

    def end_read(self, shard: Shard, ticket: int, read: Read, *, granted: bool, complete: bool) -> None:
        with self.state.changed:
            self._ungranted -= not granted
            if complete and granted:
                self.orders.forgive(shard, ticket)
            if complete:
                shard.arena.unpin(ticket)
            self._reads.end(read)
            shard.arena.end_read(read.version)
            self.state.changed.notify_all()

    def rehearse(self, index: int, update: Apply) -> tuple[bool, float]:
        """Would this update, behind the entries before `index`, be finite? And what would be the largest magnitude?

        Waits until these are executed. Raises Refused when the shard fails, or closes, before it knows.
        """
        answers: list[tuple[bool, float]] = []

        def answer(finite: bool, largest: float) -> None:
            with self.state.changed:
                answers.append((finite, largest))
                self.state.changed.notify_all()

        self.orders.submit([(index, Rehearsal(update, answer))])
        self.orders.execute_submitted()
        with self.state.changed:
            while not self._wait(lambda: bool(answers), self.options.patience):
                pass
            return answers[0]

    def _end_reads_beyond(self) -> None:
        """Versions were taken back from those who read them: what goes beyond the limit with that ends. Hold
        `state.changed`."""
        shard = self.state.shard
        if shard is not None and shard.arena.lent:
            self._reads.cut(shard.arena.lent, self.memory.versions_beyond)

    def wait_executed(self, count: int, seconds: float) -> bool:
        """True once `count` entries are executed; False after `seconds` or when closed or failed."""
        deadline = time.monotonic() + seconds
        with self.state.changed:
            self.state.changed.wait_for(
                lambda: self.state.executed >= count or self.state.closed or self.state.failure is not None,
                max(0.0, deadline - time.monotonic()),
            )
            return self.state.executed >= count
