"""Admission to a shard: members only, and only as many pushes as memory allows."""

from psserver.receipts import Claim
from psserver.service.errors import (
    Code,
    MembershipOver,
    RequestRefused,
    aborted,
    denied,
    exhausted,
    invalid,
    precondition,
    unavailable,
)
from psserver.service.guard.calls import CallPeer, Watch
from psserver.service.guard.memory import Memory
from psserver.service.store.state import SharedShard
from psserver.shard import Shard
from psserver.shard.staging import Slot
from pswire.generations import follows


class Claims:
    """Admission of members, once this server has executed the log far enough. The loop's thread owns it.

    `patience`: seconds that a call waits for the log.
    """

    def __init__(self, state: SharedShard, watch: Watch, server: int, patience: float) -> None:
        self._state, self._watch, self._server = state, watch, server
        self.patience = patience

    async def admit(self, claim: Claim, plan: str, after: int, caller: CallPeer) -> Shard:
        """Return the shard, once it has executed entry `after`.

        Raises Refused for another job or plan, and for a peer that is no member. Such a peer waits for nothing and
        learns nothing of the model.
        """
        if claim.job != self._state.job:
            await self._check_job(claim.job)
        if not claim.proven(self._state.secret):
            raise denied(
                f"expected the membership token that {claim.worker!r} was given when it joined, got another one",
            )
        self._watch.claim(claim.worker, caller)
        return await self.admit_member(claim.worker, claim.incarnation, plan, after)

    async def admit_member(self, worker: str, incarnation: int, plan: str, after: int) -> Shard:
        """Admit a peer that has proven its name. An empty `worker` is the coordinator. Otherwise as `admit`."""
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
            raise RequestRefused(
                Code.DEADLINE_EXCEEDED,
                f"server {self._server} has executed {state.executed} entries of the log, expected more than "
                f"{after}; it waited {self.patience:g} s",
            )
        if worker and shard.members.get(worker) != incarnation:
            raise MembershipOver(
                f"worker {worker!r}, incarnation {incarnation}, is no member any more; join again"
            )
        return shard

    async def _catch_up(self, after: int) -> None:
        """Wait for the log."""
        self._state.check_going(self._server)
        # The first start on a machine may compile for longer than a call is patient.
        await self._state.wait_ready()
        # What was executed in that turn is not told again.
        if self._state.executed <= after:
            await self._state.catching_up.wait_beyond(after, self.patience)

    async def _check_job(self, job: str) -> None:
        state, server = self._state, self._server
        if not state.job or follows(job, state.job):
            # This server serves no job yet, or has to notice that its coordinator is gone.
            await state.wait_for(
                lambda: bool(state.job) and not follows(job, state.job), self.patience, server
            )
        if follows(state.job, job):
            raise MembershipOver(f"the servers began again as {state.job}, and {job!r} is over; join again")
        if not state.job or follows(job, state.job):
            serves = f"still serves {state.job}" if state.job else "serves no job yet"
            raise unavailable(f"server {server} {serves}; expected job {job!r}")
        if job != state.job:
            raise precondition(
                f"expected job {state.job!r}, got {job!r}: this server serves another job; join again"
            )


class PushSlots:
    """Staging slots for pushes. `patience`: seconds that an earlier push of a ticket may take to end. The loop's
    thread owns it."""

    def __init__(self, state: SharedShard, memory: Memory, server: int, patience: float) -> None:
        self._state, self._memory = state, memory
        self._server, self._patience = server, patience

    async def begin(self, shard: Shard, ticket: int, worker: str, caller: CallPeer) -> Slot:
        """Return a slot for the ticket's payload, as soon as memory admits it.

        An earlier push of the ticket is cut: its worker has begun anew. Raises Refused.
        """
        if not self._may_enter(shard, ticket, worker):
            await self._enter(shard, ticket, worker)
        return self._place(shard, ticket, caller)

    def _may_enter(self, shard: Shard, ticket: int, worker: str) -> bool:
        """Return whether there is room now. Raises Refused for a ticket that takes no payload, or none of this
        worker."""
        refusal = shard.refusal(ticket, worker)
        if refusal is not None:
            raise aborted(refusal)
        staging = shard.staging
        free = staging.incoming(ticket) is None and staging.admits(ticket)
        return free and self._memory.admits_payload(ticket)

    async def _enter(self, shard: Shard, ticket: int, worker: str) -> None:
        deadline = self._state.runtime.now() + self._patience
        turn = shard.staging.tickets[ticket].turn
        while not self._may_enter(shard, ticket, worker):
            before = shard.staging.incoming(ticket)
            if before is not None:
                before.cut()
            if self._state.runtime.now() > deadline:
                if before is not None:
                    raise unavailable(f"an earlier push of ticket {ticket} does not end")
                # Others hold it, for as long as they take to commit.
                raise unavailable(
                    f"there is no room for the payload of ticket {ticket} yet: push again in a moment"
                )
            await self._state.admission.wait(ticket, -1 if turn is None else turn)
            self._state.check_going(self._server)
        # There may be room for the next one, too.
        self._state.admission.freed()

    def _place(self, shard: Shard, ticket: int, caller: CallPeer) -> Slot:
        try:
            return shard.begin(ticket, caller.cancel)
        except MemoryError as error:
            message = f"server {self._server} has no memory for a payload of {shard.layout.nbytes} bytes"
            raise exhausted(message) from error

    def finish(self, shard: Shard, slot: Slot) -> None:
        """Give the complete payload to its ticket. Raises Refused if that is closed or has another one."""
        taken = shard.staging.finish(slot)
        self._ended(slot)
        if not taken:
            refusal = shard.refusal(slot.ticket)
            if refusal is not None:
                raise aborted(refusal)
            raise invalid(
                f"payload of ticket {slot.ticket}: another one was accepted before; expected the same again, "
                "a commit, or an abandon"
            )
        self._state.received += 1

    def give_up(self, shard: Shard, slot: Slot) -> None:
        """Free the slot of an incomplete payload."""
        shard.staging.give_up(slot)
        self._ended(slot)

    def _ended(self, slot: Slot) -> None:
        self._state.admission.changed(slot.ticket)
        self._state.admission.freed()
