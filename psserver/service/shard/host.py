"""One shard among many peers: what workers push to it and read of it, and what they wait for."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import grpc

from psserver.fast import FastBackend
from psserver.optimizers import Optimizer
from psserver.policies import TensorParts
from psserver.receipts import Claim, receipt
from psserver.service.errors import MembershipOver, Refused, invalid, precondition
from psserver.service.limits.calls import MemberCalls
from psserver.service.limits.ledger import STRANGERS, Held, MemoryUse, usual_limit
from psserver.service.limits.room import ShardMemory, silent_calls
from psserver.service.limits.table import AWAITING, UNGRANTED
from psserver.service.limits.watch import Caller, Watch
from psserver.service.loop.heavy import HeavyWork
from psserver.service.loop.owner import Owner
from psserver.service.saving.part import PartSaver
from psserver.service.shard.executor import Executor, TrialUpdate
from psserver.service.shard.pushes import Pushes
from psserver.service.shard.reads import Read, Reads
from psserver.service.shard.shared import SharedShard
from psserver.service.transport.shared_memory import SLOTS, ControlWord, Sharing
from psserver.shard import Apply, Shard, ShardState
from psserver.shard.payloads.staging import Slot
from pswire.generations import follows
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
    # Called from another thread, when all is here that stays.
    loaded: Callable[[], object] = lambda: None


class ShardHost:
    """A shard, and the job that it serves. `orders` executes the log. The loop's thread owns it."""

    def __init__(self, server: int, options: HostOptions, owner: Owner) -> None:
        self.server = server
        self.options = options
        self.owner = owner
        self.job = ""
        self.secret = b""
        self.heavy = HeavyWork(owner)
        self.state = SharedShard(owner)
        self.orders = Executor(self.state, server, options.lease, owner, self.heavy, self._end_reads_beyond)
        self._backend = FastBackend(options.threads, loaded=options.loaded)
        self.sharing = Sharing(options.transport)
        # Reads under way of versions that nothing pins.
        self._ungranted = 0
        self._reads = Reads()
        self.memory = ShardMemory(server, options.arena_versions, options.memory_limit or usual_limit())
        self.pushes = Pushes(self.state, self.memory, server, options.patience)
        self.saver = PartSaver(owner, server, self.memory.ledger, self._saved, self.orders.copied)
        self.orders.save = lambda entry, shard: self.saver.save(entry, self.job, shard)
        self.watch = Watch(silent_calls(self.memory.ledger.limit))
        self.calls = MemberCalls(lambda: self.memory.member_calls, self.watch)
        self.memory.ledger.watch(
            lambda: self.watch.message_bytes, lambda: self.held_by(self.watch.messages, "messages")
        )
        # On which stream each member has attached memory.
        self._attached: dict[str, Caller] = {}

    # The job

    def open(self, job: str, secret: bytes) -> None:
        self.job, self.secret = job, secret
        self.state.changes.notify()

    def configure(self, plan: Plan, optimizer: Optimizer, tensors: TensorParts) -> None:
        """A new shard. Its loops are compiled from now on; until they are, numpy gives the same bits."""
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
        self._backend.prepare(shard.variants)

    def _saved(self) -> None:
        """What becomes of a part is known, and its copy is gone."""
        self.state.admission.freed()
        self.state.changes.notify()

    def held_by(self, held: Iterable[tuple[Caller, int]], kind: str) -> Iterator[Held]:
        """What calls hold, by their members."""
        for caller, nbytes in held:
            whose = self.calls.whose(caller)
            yield Held(STRANGERS if whose is None else whose, kind, nbytes)

    def take_up(self, state: ShardState, entries: int) -> None:
        """Go on behind so many entries of the log, in a shard that is new. Raises StateError, with nothing changed."""
        assert self.state.shard is not None
        self.state.shard.restore(state)
        self.state.executed = entries
        # Nobody of before is a member any more, and each comes anew.
        self.state.changes.notify()

    def memory_use(self) -> MemoryUse:
        """What is held here, and for whom."""
        return self.memory.ledger.use()

    async def attach(self, worker: str, caller: Caller) -> str | None:
        """Make room for what `worker` attaches on its stream `caller`; or why there is none.

        A member has one attachment. Its older stream is cut, and given time to let go."""
        before = self._attached.get(worker)
        if before is not None:
            before.cancel()
            if not await self._wait(lambda: worker not in self._attached, self.options.patience):
                return f"{worker} shares memory on another stream already"
        refusal = self.memory.take_slots(worker, SLOTS)
        if refusal is None:
            self._attached[worker] = caller
        return refusal

    def detach(self, worker: str, caller: Caller) -> None:
        """The stream has let go of what was attached on it."""
        if self._attached.get(worker) is caller:
            del self._attached[worker]
            self.memory.give_slots(worker)
            self.state.admission.freed()
            self.state.changes.notify()

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
        self.heavy.close()
        self._backend.close()

    # Workers

    async def serving(self, claim: Claim, plan: str, after: int, caller: Caller) -> Shard:
        """The shard, once it has executed entry `after`.

        Raises Refused for another job or plan, and for who is no member; such a one waits for nothing, and
        learns nothing of the model.
        """
        if claim.job != self.job:
            await self._check_job(claim.job)
        if not claim.proven(self.secret):
            raise Refused(
                grpc.StatusCode.PERMISSION_DENIED,
                f"expected the membership token that {claim.worker!r} was given when it joined, got another one",
            )
        self.calls.proven(claim.worker, caller)
        return await self.serving_member(claim.worker, claim.incarnation, plan, after)

    async def serving_member(self, worker: str, incarnation: int, plan: str, after: int) -> Shard:
        """As `serving`, of one that has proven who it is. An empty `worker` is the coordinator."""
        state = self.state
        if state.executed <= after:
            await self._catch_up(after)
        self.state.check_going(self.server)
        shard = state.shard
        if shard is None:
            raise precondition("no model yet: expected a worker to join the coordinator (task 0) first")
        if plan != shard.plan.fingerprint:
            raise precondition(f"expected plan {shard.plan.fingerprint}, got {plan!r}; join again")
        if state.executed <= after:
            raise Refused(
                grpc.StatusCode.DEADLINE_EXCEEDED,
                f"server {self.server} has executed {state.executed} entries of the log, expected more than "
                f"{after}; it waited {self.options.patience:g} s",
            )
        if worker and shard.members.get(worker) != incarnation:
            raise MembershipOver(
                f"worker {worker!r}, incarnation {incarnation}, is no member any more; join again"
            )
        return shard

    async def _catch_up(self, after: int) -> None:
        """Wait for the log, among so many others at most: whoever wants what is farthest off is refused."""
        self.state.check_going(self.server)
        await self.state.catching_up.wait_beyond(after, self.options.patience, most=int(AWAITING.value))

    @property
    def awaiting(self) -> int:
        """Calls that wait for the log."""
        return len(self.state.catching_up)

    def _check_reader(self, shard: Shard, ticket: int, worker: str) -> None:
        """A read ends the pin of its ticket: it must be the reader's own."""
        opened = shard.staging.tickets.get(ticket)
        if opened is not None and opened.worker != worker:
            raise Refused(
                grpc.StatusCode.ABORTED,
                f"ticket {ticket} is {opened.worker}'s: expected its read, got one of {worker!r}",
            )

    async def _check_job(self, job: str) -> None:
        if not self.job or follows(job, self.job):
            # It serves nobody yet, or has to find out that its coordinator is gone.
            await self._wait(lambda: bool(self.job) and not follows(job, self.job), self.options.patience)
        if follows(self.job, job):
            raise MembershipOver(f"the servers began again as {self.job}, and {job!r} is over; join again")
        if not self.job or follows(job, self.job):
            serves = f"still serves {self.job}" if self.job else "serves no job yet"
            raise Refused(grpc.StatusCode.UNAVAILABLE, f"server {self.server} {serves}; expected job {job!r}")
        if job != self.job:
            raise precondition(
                f"expected job {self.job!r}, got {job!r}: this server serves another job; join again"
            )

    async def _wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        await self.state.changes.wait_for(lambda: condition() or self.state.over, seconds)
        met = condition()
        if not met or self.state.failure is not None:
            self.state.check_going(self.server)
        return met

    # Pushes

    def finish_push(self, shard: Shard, slot: Slot) -> Slot:
        """The payload is complete and finite, and is its ticket's. Raises Refused when that is closed, or has
        another."""
        self.pushes.finish(shard, slot)
        return slot

    def receipt(self, slot: Slot) -> bytes:
        """Of a push that is finished: what its worker is given, for its commit."""
        ordinary, squares = slot.ordinary, slot.squares
        return receipt(self.secret, self.job, slot.ticket, self.server, ordinary=ordinary, squares=squares)

    # Reads

    async def start_read(
        self, shard: Shard, ticket: int, version: int, worker: str, caller: Caller | None = None
    ) -> tuple[Read, bool]:
        """A read of the version, which is kept until `end_read`, and whether the ticket has pinned it. Raises Refused
        (ABORTED) when it is gone, or another's ticket's. `caller`: whose read it is, to be cut when it holds too much.
        """
        self._check_reader(shard, ticket, worker)
        if ticket == 0 and shard.version < version:
            await self._wait(lambda: shard.version >= version, self.options.patience)
        granted = shard.arena.pinned(ticket, version)
        if not granted and self._ungranted >= UNGRANTED.value:
            await self._admit_ungranted()
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

    async def _admit_ungranted(self) -> None:
        """Of versions that nothing pins there are few readers at once: they may each keep a buffer."""
        if not await self._wait(lambda: self._ungranted < UNGRANTED.value, self.options.patience):
            raise Refused(
                grpc.StatusCode.UNAVAILABLE,
                f"server {self.server} has {self._ungranted} readers without a ticket already; try again",
            )

    def read_in_place(
        self, shard: Shard, ticket: int, version: int, worker: str, reader: ControlWord
    ) -> tuple[Place, list[Place]] | None:
        """Where the version lies that the ticket has pinned, and where others may; None if it must be copied."""
        self._check_reader(shard, ticket, worker)
        if reader.has_read(ticket):
            # By its own word; the pin has ended or may end at any time.
            return None
        values = shard.arena.values(version)
        place = self.sharing.place(values) if values is not None else None
        if place is None or shard.arena.read_in_place(ticket, version) is None:
            return None
        self.state.begin_read(ticket, reader)
        self.orders.reading_began()
        self.state.served += 1
        return place, self.sharing.places(shard.arena.arrays)

    def still_readable(self, shard: Shard, read: Read) -> bool:
        return shard.arena.values(read.version.number) is read.version.values

    def end_read(self, shard: Shard, ticket: int, read: Read, *, granted: bool, complete: bool) -> None:
        self._ungranted -= not granted
        if complete and granted:
            self.orders.forgive(shard, ticket)
        if complete:
            shard.arena.unpin(ticket)
        self._reads.end(read)
        shard.arena.end_read(read.version)
        self.orders.look()
        if self.state.changes.waiting:
            self.state.changes.notify()

    async def try_update(self, index: int, update: Apply) -> tuple[bool, float]:
        """Would this update, behind the entries before `index`, be finite? And what would be the largest magnitude?

        Raises Refused when the shard fails, or closes, before it knows.
        """
        answers: list[tuple[bool, float]] = []

        def answer(finite: bool, largest: float) -> None:
            answers.append((finite, largest))
            self.state.changes.notify()

        self.orders.submit([(index, TrialUpdate(update, answer))])
        self.orders.execute_submitted()
        await self._wait(lambda: bool(answers), float("inf"))
        return answers[0]

    def _end_reads_beyond(self) -> None:
        """Versions were taken back from those who read them: what goes beyond the limit with that ends."""
        shard = self.state.shard
        if shard is not None and shard.arena.lent:
            self._reads.cut(shard.arena.lent, self.memory.versions_beyond)

    async def execute(self, count: int, seconds: float) -> bool:
        """Execute what was submitted, up to `count` entries, and wait for that so long at most. True when it is done,
        and where nothing is executed any more."""
        self.orders.execute_submitted()
        return self.state.executed >= count or await self.wait_executed(count, seconds) or self.state.over

    async def wait_executed(self, count: int, seconds: float) -> bool:
        """True once `count` entries are executed; False after `seconds` or when closed or failed."""
        state = self.state
        return (
            await state.changes.wait_for(lambda: state.executed >= count or state.over, seconds)
            and state.executed >= count
        )
