"""Joining: which model, optimizer and work units the job has, and who becomes a member."""

import json
import time
from collections.abc import Callable
from dataclasses import replace

import grpc

from psserver.checkpoint import Checkpoint, CheckpointError, coordinator_of, name_of, plan_of, shards_of
from psserver.coordinator import (
    JobOver,
    JobTerms,
    JoinDeferred,
    JoinRefused,
    Output,
    Record,
)
from psserver.coordinator.entries import Job as JobEntry
from psserver.coordinator.members.roster import Member
from psserver.coordinator.work.units import WorkTerms
from psserver.optimizers import Optimizer, OptimizerError
from psserver.optimizers import build as build_optimizer
from psserver.policies import Policy
from psserver.service.agreement import agreed, explain_other_work
from psserver.service.deciding.decider import Decider
from psserver.service.errors import Refused, precondition
from psserver.service.limits.workers import capacity
from psserver.service.log.flushing import LogFlush
from psserver.service.log.run_log import RunLog
from psserver.service.saving.going_on import GoingOn
from psserver.service.shard.host import ShardHost
from pswire.model.plan import Plan, VariableSpec, explain_mismatch, make_plan
from pswire.model.specs import specs_to_wire
from pswire.patience import transfer
from pswire.records import StateError
from pswire.v1 import shard_pb2

# Why a job ended that made room for another one (`psserver.service.succession`).
REPLACED = "replaced"


class Joining(Decider):
    """The loop's thread owns it. `announce` is called with the plan when it is known."""

    def __init__(
        self,
        terms: JobTerms,
        policy: Policy,
        optimizer: Optimizer | None,
        host: ShardHost,
        run_log: RunLog,
        announce: Callable[[Plan], None],
        over: Callable[[], object],
        flush: LogFlush,
    ) -> None:
        super().__init__(terms, policy, optimizer, host, run_log, over, flush)
        self.capacity = capacity(host.memory.ledger.limit)
        self._announce = announce
        # Entries that were put aside, where it goes on from one.
        self._rolled_back: int | None = None

    def go_on(self, checkpoint: Checkpoint, found: GoingOn) -> None:
        """In place of a beginning; `open` comes next. Raises CheckpointError."""
        about = checkpoint.manifest
        self.optimizer = self.optimizer or build_optimizer(about.optimizer)
        self.terms = replace(self.terms, optimizer=self.optimizer.config)
        self._assurance.optimizer = self.optimizer
        plan, now = plan_of(checkpoint, self.terms.servers), time.monotonic()
        self._coordinator = coordinator_of(checkpoint, self.terms, self.policy, now, self._assurance)
        try:
            self._hold(plan, self.optimizer)
            self.host.take_up(shards_of(checkpoint, plan)[0], about.entry + 1)
        except (Refused, StateError) as error:
            raise CheckpointError(
                f"the checkpoint of version {about.version} cannot be taken up: {error}"
            ) from error
        begun = found.mark.first_grant
        first_grant = None if begun is None else now - about.t + begun
        self.routes.go_on(about.entry + 1, about.version, self._coordinator.folded, first_grant)
        self._adopt(plan, name_of(about.entry, about.job), about.entry + 1)
        self._opened, self._unwritten, self._rolled_back = True, None, found.rolled_back

    def join(
        self,
        variables: tuple[VariableSpec, ...],
        plan: str,
        worker: str,
        session: str,
        rank: int | None,
        optimizer: str = "",
        work: WorkTerms | None = None,
        remembers: bool = False,
    ) -> Member:
        """Raises Refused when model, optimizer or work units are other ones, PlanError when it cannot be planned.
        `remembers`: the worker's codec does."""
        proposed = make_plan(variables, self.terms.servers)
        if plan != proposed.fingerprint:
            raise precondition(
                f"plan fingerprint: expected {proposed.fingerprint} for these variables on {self.terms.servers} "
                f"servers, got {plan!r}: is every --ps-hosts the same, and the software the same version?"
            )
        free = self._unwritten is not None or (self.configured is None and self._barren)
        chosen = agreed(None if free and optimizer else self.optimizer, optimizer)
        other = self.optimizer is not None and chosen.config != self.optimizer.config
        new = self.plan is None or proposed.fingerprint != self.plan.fingerprint or other
        new = new or work != self._coordinator.work_terms
        if new:
            self._check_replaceable(variables, work, other)
            # First of all, because it may fail: then nothing has changed.
            self._hold(proposed, chosen)
            self.optimizer = chosen
            self._withdraw_plan()
            if other:
                self._agree_anew(chosen)
        self._check_room(worker, proposed, chosen)
        if not self._opened:
            self._open(chosen)
        try:
            member = self._admit(worker, session, rank, proposed, work, remembers)
        except JobOver as over:
            raise Refused(grpc.StatusCode.OUT_OF_RANGE, str(over)) from over
        except JoinRefused as refusal:
            raise precondition(str(refusal)) from refusal
        except JoinDeferred as deferred:
            raise Refused(grpc.StatusCode.UNAVAILABLE, str(deferred)) from deferred
        self._execute()
        return member

    @property
    def _barren(self) -> bool:
        """Workers came, trained nothing, and have left: their model failed at its first step, say."""
        roster = self._coordinator.roster
        return not roster.here() and not any(tally.committed for tally in roster.tallies.values())

    def _check_replaceable(
        self, variables: tuple[VariableSpec, ...], work: WorkTerms | None, other: bool
    ) -> None:
        """A model is this job's once it is installed, or while a member that named it has a session, or has lost it and
        may come back. Until then a stray Join must not decide what the job trains. One that came to nothing ends for
        it. `other`: the optimizer is. Raises Refused."""
        if self.plan is None:
            return
        coordinator = self._coordinator
        held = bool(coordinator.roster.here())
        said = coordinator.initialised or (other and self._unwritten is None)
        if said and self._barren and coordinator.stopped is None:
            # What is in the log cannot be taken back: a new job.
            reason = "nothing was trained, its workers have left, and one with another model came: a new job begins"
            self._input(lambda c, now: c.stop(reason, now, success=False, cause=REPLACED))
            raise Refused(
                grpc.StatusCode.UNAVAILABLE,
                "the job before has ended, and another one begins: join again in a moment",
            )
        if coordinator.initialised or held:
            if work != coordinator.work_terms:
                raise precondition(explain_other_work(coordinator.work_terms, work))
            difference = explain_mismatch(self.plan.variables, variables)
            raise precondition(f"this job trains another model: {difference}")

    def _check_room(self, worker: str, plan: Plan, optimizer: Optimizer) -> None:
        """A worker that has no place yet needs descriptors, and memory of its own under some policies. Raises
        Refused."""
        roster = self._coordinator.roster
        present = roster.present
        if worker not in roster.tallies:
            self.host.memory.admit_name(roster.nbytes)
        if worker not in present:
            if len(present) >= self.capacity.workers:
                raise Refused(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"server 0 has room for {self.capacity.workers} workers at once, and has them: {self.capacity.why}",
                )
            self.host.memory.admit_members(len(present) + 1, plan, optimizer, self.policy.tensors)

    def _withdraw_plan(self) -> None:
        """Those who named the model before have no session, and are no members any more."""
        if self.plan is None:
            return
        self.plan = None
        reason = "named another model or optimizer than the workers that came"
        self._step(lambda: self._coordinator.dismiss_absent(reason, time.monotonic()) or [])

    def _admit(
        self,
        worker: str,
        session: str,
        rank: int | None,
        plan: Plan,
        work: WorkTerms | None,
        remembers: bool,
    ) -> Member:
        """Raises JoinRefused, with nothing changed; Refused when the job has failed."""
        admitted: list[Member] = []

        def decide() -> list[Output]:
            now = time.monotonic()
            member, outputs = self._coordinator.join(worker, session, rank, now, remembers=remembers)
            if self.plan is None:
                self._adopt(plan)
                outputs += self._coordinator.declare_work(work, now)
            admitted.append(member)
            return outputs

        self._step(decide)
        if self.failure is not None:
            raise Refused(grpc.StatusCode.UNAVAILABLE, f"the job is over: {self.failure.reason}")
        return admitted[0]

    def _hold(self, plan: Plan, optimizer: Optimizer) -> None:
        try:
            optimizer.check_aggregator(self.policy.tensors.aggregator)
            self.host.configure(plan, optimizer, self.policy.tensors)
        except MemoryError as error:
            raise Refused(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"server 0 has no memory for this model: its part has {plan.shards[0].nbytes} bytes, and "
                f"{optimizer.name} keeps {len(optimizer.slots)} more arrays of that size",
            ) from error
        except OptimizerError as error:
            raise precondition(f"this model and the job's optimizer do not go together: {error}") from error

    def _adopt(self, plan: Plan, checkpoint: str = "", entries: int = 0) -> None:
        """`checkpoint`: that the servers take up, behind so many entries of the log."""
        assert self.optimizer is not None
        self.plan, self._assurance.optimizer = plan, self.optimizer
        largest = max(shard.nbytes for shard in plan.shards)
        self._coordinator.planned(transfer(largest, 0.0))
        message = shard_pb2.Configure(
            variables=specs_to_wire(plan.variables),
            plan=plan.fingerprint,
            optimizer=json.dumps(self.optimizer.config),
            tensors=json.dumps(self.policy.tensors.config),
            checkpoint=checkpoint,
            entries=entries,
        )
        for follower in self.routes.followers:
            follower.configure(message)
        self._announce(plan)

    def _agree_anew(self, optimizer: Optimizer) -> None:
        """The optimizer is another one than the first Join said; nothing is written yet."""
        self._agree(optimizer)
        assert self._unwritten
        first = self._unwritten[0]
        assert isinstance(first, Record) and isinstance(first.entry, JobEntry)
        self._unwritten[0] = Record(first.index, first.t, replace(first.entry, optimizer=optimizer.config))
