"""Who is served: members of the job, once this server has executed the log that far."""

import grpc

from psserver.receipts import Claim
from psserver.service.errors import MembershipOver, Refused, precondition
from psserver.service.guard.calls import MemberCalls
from psserver.service.guard.table import AWAITING
from psserver.service.guard.watch import Caller
from psserver.service.store.shared import SharedShard
from psserver.shard import Shard
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
        self._calls.proven(claim.worker, caller)
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
