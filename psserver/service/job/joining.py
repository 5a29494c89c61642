"""Joining: the model, optimizer and work units of a job, and the admission of members."""

import json
from collections.abc import Callable
from typing import NoReturn

from psserver.checkpoint import Checkpoint, CheckpointError, coordinator_of, name_of, plan_of, shards_of
from psserver.codec_rules import check_rows
from psserver.coordinator import Declined, Joined, Output, inputs
from psserver.coordinator.roster import MAX_NAME_BYTES, Member
from psserver.coordinator.terms import Proposal
from psserver.coordinator.units import WorkTerms
from psserver.optimizers import Optimizer, OptimizerError, build
from psserver.policies import PolicyError
from psserver.records import StateError, to_plain
from psserver.service.errors import Code, RequestRefused, exhausted, precondition, unavailable
from psserver.service.guard.limits import NAMES
from psserver.service.guard.machine import DESCRIPTORS, most_workers
from psserver.service.guard.memory import MIB
from psserver.service.job.agreement import (
    AgreedModel,
    Named,
    NextJob,
    agree_on_codec,
    agreed,
    explain_other_deltas,
    explain_other_work,
    planned,
)
from psserver.service.job.decider import Decider
from psserver.service.job.names_in_use import Joiner, NamesInUse
from psserver.service.job.next_job import join_the_next, make_room
from psserver.service.store.resume_point import ResumePoint
from pswire import protocol
from pswire.messages import specs_to_wire
from pswire.model.plan import Plan, explain_mismatch
from pswire.model.tables import explain_other_tables, tables_to_json
from pswire.model.variables import check_specs
from pswire.patience import transfer
from pswire.transport.blocks import BlockCodec
from pswire.transport.codecs import FLOAT32, Codec, WireDtypeError
from pswire.transport.wire import deltas_named, number_of
from pswire.v1 import shard_pb2


class JobModel:
    """The model of a job. `announce` is called with its plan once that is known. The loop's thread owns it."""

    def __init__(self, decider: Decider, announce: Callable[[Plan], None]) -> None:
        self._decider, self._announce = decider, announce

    def hold(self, plan: Plan, optimizer: Optimizer, deltas: BlockCodec | None) -> None:
        """Make a new shard here. Raises Refused if that is impossible, with nothing changed."""
        agreement = self._decider.agreement
        policy, tensors = agreement.policy, agreement.policy.tensors
        try:
            optimizer.check_local(policy.local_rule.name)
            if plan.tables:
                check_rows(policy, optimizer)
            self._decider.host.configure(plan, optimizer, tensors, deltas)
        except MemoryError as error:
            raise exhausted(
                f"server 0 has no memory for this model: its part has {plan.shards[0].nbytes} bytes, and "
                f"{optimizer.name} keeps {len(optimizer.slots)} more arrays of that size",
            ) from error
        except (OptimizerError, PolicyError) as error:
            raise precondition(f"this model and the job's optimizer do not go together: {error}") from error
        agreement.deltas = deltas

    def adopt(self, plan: Plan, checkpoint: str = "", entries: int = 0) -> None:
        """Make this the job's model and configure the other servers. `checkpoint`: the one that servers restore,
        after that many log entries."""
        decider, agreement = self._decider, self._decider.agreement
        optimizer = agreement.optimizer
        assert optimizer is not None
        agreement.plan = plan
        largest = max(shard.nbytes for shard in plan.shards)
        config: dict[str, object] = to_plain(optimizer.config)
        proposal = Proposal(plan.fingerprint, config, transfer(largest, 0.0))
        decider.give(inputs.ModelProposed(proposal))
        message = shard_pb2.Configure(
            variables=specs_to_wire(plan.variables),
            plan=plan.fingerprint,
            optimizer=json.dumps(config),
            tensors=json.dumps(agreement.policy.tensors.config),
            checkpoint=checkpoint,
            entries=entries,
            deltas=number_of(agreement.deltas),
            tables=tables_to_json(plan.tables),
        )
        decider.configure(message)
        self._announce(plan)


def resume(decider: Decider, model: JobModel, checkpoint: Checkpoint, found: ResumePoint) -> None:
    """Restore coordinator, shard and log from the checkpoint. Raises CheckpointError."""
    about, agreement = checkpoint.manifest, decider.agreement
    agreement.optimizer = optimizer = agreement.optimizer or build(about.optimizer)
    plan = plan_of(checkpoint, agreement.terms.servers)
    decider.take_up(coordinator_of(checkpoint, agreement.terms, agreement.policy))
    try:
        state = shards_of(checkpoint, plan)[0]
        model.hold(plan, optimizer, deltas_named(state.deltas))
        decider.host.take_up(state, about.entry + 1)
    except (RequestRefused, StateError, WireDtypeError) as error:
        raise CheckpointError(
            f"the checkpoint of version {about.version} cannot be taken up: {error}"
        ) from error
    folded = tuple(decider.coordinator.state.folded)
    decider.routes.go_on(about.entry + 1, about.version, folded, found.mark.first_grant)
    model.adopt(plan, name_of(about.entry, about.job), about.entry + 1)


class Joining:
    """Joins of one job. The loop's thread owns it."""

    def __init__(self, decider: Decider, model: JobModel) -> None:
        self._decider, self._model, self._most = decider, model, most_workers()
        self._agreement = decider.agreement
        self.names = NamesInUse(self._agreement.terms.worker_timeout)

    def join(
        self,
        model: Named,
        plan: str,
        worker: str,
        session: str,
        rank: int | None,
        optimizer: str = "",
        work: WorkTerms | None = None,
        codec: Codec = FLOAT32,
        deltas: BlockCodec | None = None,
        stays: bool = False,
        used: int = 0,
        computes: str = "",
        function: str = "",
        process: str = "",
        place: str = "",
    ) -> Member:
        """Admit a worker. `codec`: of its gradients; `deltas`: of the weights' changes. `stays`: its process may take
        part in another phase. `used`, `function`: as in `JoinAsked`. `process`, `place`: as in a JoinRequest.

        Raises Refused if another process has the name, or if model, optimizer or work units differ; PlanError if the
        model cannot be planned.
        """
        agreement, decider = self._agreement, self._decider
        self._check_known(model, plan, work)
        proposed = planned(agreement, model, plan)
        free = agreement.configured is None and self._nothing_trained
        chosen = agreed(
            *(None if free and optimizer else agreement.optimizer, optimizer),
            rate_was_set=decider.coordinator.state.lr_scale != 1.0,
        )
        agree_on_codec(agreement, codec, chosen)
        self._propose(proposed, chosen, work, deltas)
        self._check_room(worker, proposed, chosen)
        newcomer = Joiner(session, process, place, decider.now())
        by = self._take_name(worker, rank, newcomer)
        member = self._admit(
            inputs.JoinAsked(worker, session, rank, codec.remembers, stays, used, computes, function, by),
            proposed,
            work,
        )
        agreement.codec = codec
        self.names.admitted(member.worker, newcomer)
        decider.execute()
        return member

    def _check_known(self, model: Named, plan: str, work: WorkTerms | None) -> None:
        """Refuse another model without planning it, while the job has one for good. Raises Refused."""
        present, coordinator = self._agreement.plan, self._decider.coordinator
        if present is None or present.fingerprint == plan:
            return
        replaceable = self._nothing_trained and coordinator.state.stopped is None
        if not coordinator.state.roster.here() and (replaceable or not coordinator.state.initialised):
            return
        other = model()
        check_specs(other.variables)
        if other != (present.variables, present.tables):
            self._refuse(present, other, work, None)

    def _refuse(
        self, present: Plan, other: AgreedModel, work: WorkTerms | None, deltas: BlockCodec | None
    ) -> NoReturn:
        ours = self._decider.coordinator.state.work_terms
        if work != ours:
            raise precondition(explain_other_work(ours, work))
        if other == (present.variables, present.tables):
            raise precondition(explain_other_deltas(self._agreement.deltas, deltas))
        if other.variables == present.variables:
            found = explain_other_tables(present.tables, other.tables)
        else:
            found = explain_mismatch(present.variables, other.variables)
        raise precondition(f"this job trains another model: {found}")

    def _propose(
        self, proposed: Plan, chosen: Optimizer, work: WorkTerms | None, deltas: BlockCodec | None
    ) -> None:
        """Check that model, optimizer and work units are the job's, or make them so if they may be replaced. Raises
        Refused, with nothing changed."""
        agreement, state = self._agreement, self._decider.coordinator.state
        if state.stopped is not None:
            # The coordinator refuses it.
            return
        present, optimizer = agreement.plan, agreement.optimizer
        if (
            present is not None
            and optimizer is not None
            and (proposed.fingerprint, chosen.config) == (present.fingerprint, optimizer.config)
            and deltas is agreement.deltas
            and (state.undeclared or work == state.work_terms)
        ):
            return
        if present is not None:
            self._check_replaceable(present, proposed, work, deltas)
        # First, because it may fail with nothing changed.
        self._model.hold(proposed, chosen, deltas)
        if agreement.optimizer is not chosen:
            agreement.optimizer = chosen
            agreement.advise()
        self._withdraw_plan()

    @property
    def _nothing_trained(self) -> bool:
        """Whether nobody is here, and nothing was trained so far: for example because the model of those who came
        failed at its first step."""
        roster = self._decider.coordinator.state.roster
        return not roster.here() and not any(tally.committed for tally in roster.tallies.values())

    def _check_replaceable(
        self, present: Plan, proposed: Plan, work: WorkTerms | None, deltas: BlockCodec | None
    ) -> None:
        """Raise Refused unless the present model may be replaced.

        A model is the job's once it is installed, or while a member that named it has a session or may come back.
        Until then a stray Join must not decide what the job trains. A job that trained nothing ends to make room.
        """
        state = self._decider.coordinator.state
        if state.initialised and self._nothing_trained:
            # The log cannot be taken back, so a new job begins.
            reason = "nothing was trained, its workers have left, and one came to train something else: a job begins"
            terms = self._agreement.terms
            known = (*terms.predecessors, terms.job) if terms.predecessors else ()
            make_room(self._decider, NextJob(known), reason, success=False)
            raise join_the_next()
        if state.initialised or state.roster.here():
            self._refuse(present, AgreedModel(proposed.variables, proposed.tables), work, deltas)

    def _check_room(self, worker: str, plan: Plan, optimizer: Optimizer) -> None:
        """Raise Refused unless a new worker has descriptors, and memory of its own under some policies."""
        roster, memory = self._decider.coordinator.state.roster, self._decider.host.memory
        present = roster.present
        if worker not in roster.tallies and roster.nbytes + MAX_NAME_BYTES > NAMES:
            raise exhausted(
                f"no memory for one more name: expected at most {NAMES / MIB:.1f} MiB for what is kept of all names "
                f"that have ever joined, got {roster.nbytes / MIB:.1f} already; --max-workers says how many there may "
                "be",
            )
        if worker not in present:
            if len(present) >= self._most:
                raise exhausted(
                    f"server 0 has room for {self._most} workers at once, and has them: each takes {DESCRIPTORS} "
                    "descriptors (ulimit -n)",
                )
            policy, deltas = self._agreement.policy, self._agreement.deltas
            # As if every server had this one's limit.
            largest = max(plan.shards, key=lambda shard: shard.nbytes)
            memory.admit(largest, optimizer, policy.tensors, deltas, members=len(present) + 1)

    def _take_name(self, worker: str, rank: int | None, newcomer: Joiner) -> str:
        """Return who joins, for a worker that loses its name to it. Raises Refused while that one keeps the name."""
        coordinator = self._decider.coordinator
        member = coordinator.state.roster.named(worker, rank)
        if member is None or member.session == newcomer.session or coordinator.state.stopped is not None:
            return ""
        linked = (member.worker, member.incarnation) in self._decider.routes.outboxes
        older = newcomer.session in coordinator.state.roster.tally(member.worker).sessions
        now, names = self._decider.now(), self.names
        ruling = names.ask_for(
            *(member.worker, member.session, newcomer, now),
            lost=member.absent_since is not None,
            linked=linked,
            older=older,
        )
        owner = names.owner(member.worker, member.session)
        if ruling.outcome == "wait":
            raise unavailable(_in_use(member.worker, owner, now, ruling.seconds))
        if ruling.outcome == "refuse":
            raise precondition(_kept(member.worker, owner, now, older))
        if owner is not None and owner.same(newcomer):
            return "another session of the same process"
        return f"another process ({newcomer.place})" if newcomer.place else ""

    def _withdraw_plan(self) -> None:
        """Withdraw the plan; members that named it have no session and are dismissed."""
        if self._agreement.plan is None:
            return
        self._agreement.plan = self._agreement.codec = None
        leave, decider = (
            protocol.Leave("named another model or optimizer than the workers that came"),
            self._decider,
        )
        for member in decider.coordinator.state.roster.by_rank():
            asked = inputs.Requested(member.worker, member.incarnation, leave)
            decider.step(lambda asked=asked: decider.give(asked))  # type: ignore[misc]

    def _admit(self, asked: inputs.JoinAsked, plan: Plan, work: WorkTerms | None) -> Member:
        """Admit the member. Raises Refused, with nothing changed."""
        decider, answers = self._decider, list[Joined | Declined]()

        def decide() -> list[Output]:
            outputs = decider.give(asked)
            answers.extend(each for each in outputs if isinstance(each, Joined | Declined))
            if isinstance(answers[0], Joined):
                first = self._agreement.plan is None
                if first:
                    self._model.adopt(plan)
                if first or decider.coordinator.state.undeclared:
                    outputs += decider.give(inputs.WorkDeclared(work))
            return outputs

        decider.step(decide)
        if decider.failure is not None:
            raise unavailable(f"the job is over: {decider.failure.reason}")
        if isinstance(answers[0], Declined):
            raise RequestRefused(_STATUS[answers[0].kind], answers[0].reason)
        return decider.coordinator.state.roster.present[answers[0].worker]


# What a worker is told whose Join is refused, by the kind of `psserver.coordinator.Declined`.
_STATUS = {
    "refused": Code.FAILED_PRECONDITION,
    "over": Code.OUT_OF_RANGE,
    "stopped": Code.NOT_FOUND,
}


def _in_use(worker: str, owner: Joiner | None, now: float, seconds: float) -> str:
    """Say what a newcomer waits for. The end of the sentence asks it to join again."""
    if owner is None:
        return (
            f"the name {worker!r} is in use by a process that has up to {seconds:.1f} s to come to this server: "
            "join again in a moment"
        )
    return (
        f"the name {worker!r} is in use by {owner.named}, which joined {now - owner.since:.1f} s ago; "
        f"whether it is alive is known in {seconds:.1f} s: join again in a moment"
    )


def _kept(worker: str, owner: Joiner | None, now: float, older: bool) -> str:
    """Say who keeps a name."""
    since = "a process that is alive"
    if owner is not None:
        since = f"{owner.named}, which joined {now - owner.since:.1f} s ago and is alive"
    if older:
        return f"another process joined as {worker!r} while this one was away: {since}"
    return (
        f"the name {worker!r} is in use by {since}: expected another name or task index for this worker (--name, "
        "--task-index), or the end of that process first"
    )
