"""Admission to a shard: members only, and only as many pushes and attachments as memory allows."""

import time

import grpc

from psserver.receipts import Claim
from psserver.service.errors import MembershipOver, Refused, invalid, precondition
from psserver.service.guard.calls import Caller, MemberCalls
from psserver.service.guard.limits import AWAITING
from psserver.service.guard.room import ShardMemory
from psserver.service.store.shared_memory import SLOTS
from psserver.service.store.state import SharedShard
from psserver.shard import Shard
from psserver.shard.staging import Slot
from pswire.generations import follows


class Claims:
    """`patience`: seconds that a call waits for the log. The loop's thread owns it."""

    def __init__(self, state: SharedShard, calls: MemberCalls, server: int, patience: float) -> None:
        self._state, self._calls, self._server = state, calls, server
        self.patience = patience

    async def admit(self, claim: Claim, plan: str, after: int, caller: Caller) -> Shard:
        """The shard, once it has executed entry `after`.

        Raises Refused for another job or plan, and for who is no member; such a one waits for nothing, and
        learns nothing of the model.
        """
        if claim.job != self._state.job:
            await self._check_job(claim.job)
        if not claim.proven(self._state.secret):
            raise Refused(
                grpc.StatusCode.PERMISSION_DENIED,
                f"expected the membership token that {claim.worker!r} was given when it joined, got another one",
            )
        self._calls.claim(claim.worker, caller)
        return await self.admit_member(claim.worker, claim.incarnation, plan, after)

    async def admit_member(self, worker: str, incarnation: int, plan: str, after: int) -> Shard:
        """As `admit`, of one that has proven who it is. An empty `worker` is the coordinator."""
        state = self._state
        if state.executed <= after:
            await self._catch_up(after)
        state.check_going(self._server)
        shard = state.shard
        if shard is None:
            raise precondition("no model yet: expected a worker to join the coordinator (task 0) first")
        if plan != shard.plan.fingerprint:
            raise precondition(f"expected plan {shard.plan.fingerprint}, got {plan!r}; join again")
        if state.executed <= after:
            raise Refused(
                grpc.StatusCode.DEADLINE_EXCEEDED,
                f"server {self._server} has executed {state.executed} entries of the log, expected more than "
                f"{after}; it waited {self.patience:g} s",
            )
        if worker and shard.members.get(worker) != incarnation:
            raise MembershipOver(
                f"worker {worker!r}, incarnation {incarnation}, is no member any more; join again"
            )
        return shard

    async def _catch_up(self, after: int) -> None:
        """Wait for the log, among so many others at most: whoever wants what is farthest off is refused."""
        self._state.check_going(self._server)
        await self._state.catching_up.wait_beyond(after, self.patience, most=int(AWAITING.value))

    @property
    def awaiting(self) -> int:
        """Calls that wait for the log."""
        return len(self._state.catching_up)

    async def _check_job(self, job: str) -> None:
        state, server = self._state, self._server
        if not state.job or follows(job, state.job):
            # It serves nobody yet, or has to find out that its coordinator is gone.
            await state.wait_for(
                lambda: bool(state.job) and not follows(job, state.job), self.patience, server
            )
        if follows(state.job, job):
            raise MembershipOver(f"the servers began again as {state.job}, and {job!r} is over; join again")
        if not state.job or follows(job, state.job):
            serves = f"still serves {state.job}" if state.job else "serves no job yet"
            raise Refused(grpc.StatusCode.UNAVAILABLE, f"server {server} {serves}; expected job {job!r}")
        if job != state.job:
            raise precondition(
                f"expected job {state.job!r}, got {job!r}: this server serves another job; join again"
            )


class PushSlots:
    """`patience`: seconds that an earlier push of a ticket may take to end. The loop's thread owns it."""

    def __init__(self, state: SharedShard, memory: ShardMemory, server: int, patience: float) -> None:
        self._state, self._memory = state, memory
        self._server, self._patience = server, patience

    async def begin(self, shard: Shard, ticket: int, worker: str, caller: Caller) -> Slot:
        """A slot for the ticket's payload, as soon as memory admits it.

        A push of the ticket that is under way is cut: its worker has begun anew.
        """
        self._state.admission.supersede(ticket)
        if not self._may_enter(shard, ticket, worker):
            await self._enter(shard, ticket, worker)
        return self._place(shard, ticket, caller)

    def _may_enter(self, shard: Shard, ticket: int, worker: str) -> bool:
        """Raises Refused for a ticket that takes no payload, or none of this worker."""
        refusal = shard.refusal(ticket, worker)
        if refusal is not None:
            raise Refused(grpc.StatusCode.ABORTED, refusal)
        staging = shard.staging
        free = staging.incoming(ticket) is None and staging.admits(ticket)
        return free and self._memory.admits(ticket)

    async def _enter(self, shard: Shard, ticket: int, worker: str) -> None:
        deadline = time.monotonic() + self._patience
        turn = shard.staging.tickets[ticket].turn
        while not self._may_enter(shard, ticket, worker):
            before = shard.staging.incoming(ticket)
            if before is not None:
                before.cut()
                if time.monotonic() > deadline:
                    text = f"an earlier push of ticket {ticket} does not end"
                    raise Refused(grpc.StatusCode.UNAVAILABLE, text)
            if not await self._state.admission.wait(ticket, -1 if turn is None else turn):
                raise Refused(grpc.StatusCode.CANCELLED, "the worker pushes the ticket anew")
            self._state.check_going(self._server)
        # The next may come in, too.
        self._state.admission.freed()

    def _place(self, shard: Shard, ticket: int, caller: Caller) -> Slot:
        try:
            return shard.begin(ticket, caller.cancel)
        except MemoryError as error:
            message = f"server {self._server} has no memory for a payload of {shard.layout.nbytes} bytes"
            raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, message) from error

    def finish(self, shard: Shard, slot: Slot) -> None:
        """The payload is complete and finite. Raises Refused when the ticket is closed, or has another."""
        taken = shard.staging.finish(slot)
        self._ended(slot)
        if not taken:
            refusal = shard.refusal(slot.ticket)
            if refusal is not None:
                raise Refused(grpc.StatusCode.ABORTED, refusal)
            raise invalid(
                f"payload of ticket {slot.ticket}: another one was accepted before; expected the same again, "
                "a commit, or an abandon"
            )
        self._state.received += 1

    def give_up(self, shard: Shard, slot: Slot) -> None:
        shard.staging.give_up(slot)
        self._ended(slot)

    def _ended(self, slot: Slot) -> None:
        self._state.admission.changed(slot.ticket)
        self._state.admission.freed()


class Attachments:
    """`patience`: seconds that a member's older stream may take to let go. The loop's thread owns it."""

    def __init__(self, state: SharedShard, memory: ShardMemory, server: int, patience: float) -> None:
        self._state, self._memory = state, memory
        self._server, self._patience = server, patience
        # On which stream each member has attached memory.
        self._attached: dict[str, Caller] = {}

    async def begin(self, worker: str, caller: Caller) -> str | None:
        """Make room for what `worker` attaches on its stream `caller`; or why there is none.

        Its older stream is cut, and given time to let go."""
        before = self._attached.get(worker)
        if before is not None:
            before.cancel()
            gone = await self._state.wait_for(
                lambda: worker not in self._attached, self._patience, self._server
            )
            if not gone:
                return f"{worker} shares memory on another stream already"
        refusal = self._memory.take_slots(worker, SLOTS)
        if refusal is None:
            self._attached[worker] = caller
        return refusal

    def end(self, worker: str, caller: Caller) -> None:
        """The stream has let go of what was attached on it."""
        if self._attached.get(worker) is caller:
            del self._attached[worker]
            self._memory.give_slots(worker)
            self._state.admission.freed()
            self._state.changes.notify()
