"""The job: one coordinator, which the loop's thread owns.

Every input goes three steps: the coordinator decides, the
run log takes its entries, and only then are they sent (`psserver.service.routes`).
Where one of the steps fails the job ends with a sentence: the log may end
early, but it has no gap, and nothing has happened that is not in it.
"""

import json
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import grpc

from psserver.assurance import ShardAssurance
from psserver.checkpoint import CheckpointError, coordinator_of, name_of, plan_of, shards_of
from psserver.coordinator import (
    CommitFacts,
    Coordinator,
    JobTerms,
    JoinDeferred,
    JoinRefused,
    Output,
    Record,
    Trial,
    entries,
)
from psserver.coordinator.entries import Job as JobEntry
from psserver.coordinator.epochs import EpochSums, Totals
from psserver.coordinator.epochs import Report as EpochReport
from psserver.coordinator.members.roster import Member
from psserver.coordinator.outputs import StopNotice
from psserver.coordinator.status import JobReport, holdup, report
from psserver.coordinator.work.units import WorkTerms
from psserver.optimizers import Optimizer, OptimizerError
from psserver.optimizers import build as build_optimizer
from psserver.policies import Policy, advice
from psserver.service.agreement import agreed, explain_other_work
from psserver.service.errors import Refused, precondition
from psserver.service.limits.ledger import MODEL, Held
from psserver.service.limits.workers import capacity
from psserver.service.log.json_lines import LogError
from psserver.service.log.run_log import RunLog
from psserver.service.outbox import InlineReply, Outbox
from psserver.service.routes import Routes
from psserver.service.saving.going_on import GoingOn
from psserver.service.saving.whole import Checkpoints
from psserver.service.shard.host import ShardHost
from psserver.service.trials import Answers
from pswire.exits import ExitCode
from pswire.logs.events import event
from pswire.model.plan import Plan, VariableSpec, explain_mismatch, make_plan
from pswire.model.specs import specs_to_wire
from pswire.patience import transfer
from pswire.records import StateError
from pswire.v1 import shard_pb2

log = logging.getLogger("ps-server")

# Of memory, about: a notice with a sentence.
NOTICE_BYTES = 512

Seen = TypeVar("Seen")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a job could not decide any more, and the exit code that says so."""

    reason: str
    code: ExitCode


class Job:
    """The coordinator among its peers. The loop's thread owns it, with `routes`, `plan` and `metrics`; other threads
    may use `look` and `report` only.

    `announce` is called with the plan when it is known; `over` once, when the job is over.
    """

    def __init__(
        self,
        terms: JobTerms,
        policy: Policy,
        optimizer: Optimizer | None,
        host: ShardHost,
        run_log: RunLog,
        announce: Callable[[Plan], None],
        over: Callable[[], object],
    ) -> None:
        self.terms = terms
        self.policy = policy
        self.optimizer = self.configured = optimizer
        self.host = host
        self.routes = Routes(run_log, host.orders, terms.grace)
        self.plan: Plan | None = None
        self.metrics: dict[str, float] = {}
        # The newest version that was evaluated while the job went on.
        self._evaluated = -1
        self.over = False
        # Set at most once; nothing is decided or written afterwards.
        self.failure: Failure | None = None
        self.began = time.monotonic()
        # What the end waits for beside members: what, since when (monotonic), and for how many seconds at most.
        self.awaited: tuple[str, float, float] | None = None
        self.capacity = capacity(host.memory.ledger.limit)
        self._announce, self._tell_over = announce, over
        # What the log's tail and unread notices took when they were last looked at.
        self._held: list[Held] = []
        host.memory.ledger.watch(
            lambda: sum(held.nbytes for held in self._held[-1:]), lambda: self._held[:-1]
        )
        self._assurance = ShardAssurance(policy.tensors, optimizer)
        self._coordinator = Coordinator(terms, policy, self.began, self._assurance)
        self._answers = Answers(terms.servers)
        self._epochs = EpochSums()
        self._opened = False
        # The log's first entry names the optimizer. Where that is the workers', a Join alone decides nothing: what is
        # to be written waits here until a session stands, and another Join may name another. None: nothing waits.
        self._unwritten: list[Output] | None = [] if optimizer is None else None
        # Where the job takes some.
        self.checkpoints: Checkpoints | None = None
        # Entries that were put aside, where it goes on from one.
        self._rolled_back: int | None = None

    def go_on(self, found: GoingOn) -> None:
        """In place of a beginning; `open` comes next. Raises CheckpointError."""
        checkpoint, about = found.checkpoint, found.checkpoint.manifest
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

    def open(self) -> None:
        """The log's first entry; it names the optimizer, so it may have to wait for the first worker."""
        rolled_back = self._rolled_back
        if rolled_back is not None:
            self._input(lambda c, now: c.resume(rolled_back, now))
        elif self.optimizer is not None:
            self._open(self.optimizer)
            self._execute()

    def _open(self, optimizer: Optimizer | None) -> None:
        self._opened = True
        if optimizer is not None:
            self._agree(optimizer)
        self._step(self._coordinator.opening)

    def _agree(self, optimizer: Optimizer) -> None:
        self._coordinator.agree(optimizer.config)
        advised = advice(self.policy.name, optimizer.config)
        if advised is not None:
            log.warning("%s", advised, extra=event("advice"))

    def _agree_anew(self, optimizer: Optimizer) -> None:
        """The optimizer is another one than the first Join said; nothing is written yet."""
        self._agree(optimizer)
        assert self._unwritten
        first = self._unwritten[0]
        assert isinstance(first, Record) and isinstance(first.entry, JobEntry)
        self._unwritten[0] = Record(first.index, first.t, replace(first.entry, optimizer=optimizer.config))

    def _to_write(self, outputs: list[Output]) -> list[Output]:
        """`outputs`, behind those that waited; none while they wait."""
        if self._unwritten is None:
            return outputs
        self._unwritten += outputs
        if not self._coordinator.roster.here() and self._coordinator.stopped is None:
            return []
        outputs, self._unwritten = self._unwritten, None
        return outputs

    @property
    def coordinator(self) -> Coordinator:
        """For reading once the job is over; while it runs use `report`."""
        return self._coordinator

    # Inputs

    def _input(self, step: Callable[[Coordinator, float], list[Output]]) -> None:
        self._step(lambda: step(self._coordinator, time.monotonic()))
        self._execute()

    def _step(self, decide: Callable[[], list[Output]]) -> None:
        """Decide, write, send. A failure ends the job; JoinRefused is an answer, with nothing changed."""
        if self.failure is not None:
            return
        try:
            outputs = self._to_write(decide())
            orders = self.routes.write(outputs)
            self.routes.send(outputs, orders, self._coordinator.version)
            for output in outputs:
                if isinstance(output, Trial):
                    self._answers.expect(output.number)
                    self.routes.ask(output, self.tried)
            self._save(outputs)
        except (JoinRefused, JoinDeferred):
            raise
        except LogError as error:
            self._fail(str(error), ExitCode.STORAGE)
        except Exception as error:
            log.exception("a decision of the job failed", extra=event("decision_failed"))
            self._fail(f"a decision failed: {type(error).__name__}: {error}", ExitCode.INTERNAL)
        else:
            if self._coordinator.over:
                self._end()

    def _save(self, outputs: list[Output]) -> None:
        """Where the last entry orders a checkpoint: the servers have been sent it."""
        last = outputs[-1] if outputs else None
        if self.checkpoints is None or self.plan is None or not isinstance(last, Record):
            return
        if isinstance(last.entry, entries.Checkpoint):
            coordinator = self._coordinator
            self.checkpoints.order(last, coordinator.state, coordinator.terms, self.policy, self.plan)

    def checkpoint(self) -> None:
        """Save what there is, before a signal ends the job."""
        if self.checkpoints is not None:
            self._input(lambda c, now: c.checkpoint(now))

    def tried(self, server: int, trial: int, finite: bool, largest: float) -> None:
        """A server's answer to the question whether an update is finite."""
        found = self._answers.take(server, trial, finite, largest)
        if found is not None:
            self._step(lambda: self._coordinator.tried(trial, *found, time.monotonic()))
        self._execute()

    def _fail(self, reason: str, code: ExitCode) -> None:
        """The end of a job that can decide nothing more: every worker is sent that, and nothing else."""
        log.error("the job ends: %s", reason, extra=event("job_failed"))
        self.failure = Failure(reason, code)
        self.routes.outboxes.post_all(self.routes.stop_notice(reason))
        self._end()

    def _end(self) -> None:
        if not self.over:
            self.over = True
            self._tell_over()

    def _execute(self) -> None:
        self.host.orders.execute_submitted()

    # Members

    def join(
        self,
        variables: tuple[VariableSpec, ...],
        plan: str,
        worker: str,
        session: str,
        rank: int | None,
        optimizer: str = "",
        work: WorkTerms | None = None,
    ) -> Member:
        """Raises Refused when model, optimizer or work units are other ones, PlanError when it cannot be planned."""
        proposed = make_plan(variables, self.terms.servers)
        if plan != proposed.fingerprint:
            raise precondition(
                f"plan fingerprint: expected {proposed.fingerprint} for these variables on {self.terms.servers} "
                f"servers, got {plan!r}: is every --ps-hosts the same, and the software the same version?"
            )
        chosen = agreed(None if self._unwritten is not None and optimizer else self.optimizer, optimizer)
        other = self.optimizer is not None and chosen.config != self.optimizer.config
        new = self.plan is None or proposed.fingerprint != self.plan.fingerprint or other
        new = new or work != self._coordinator.work_terms
        if new:
            self._check_replaceable(variables, work)
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
            member = self._admit(worker, session, rank, proposed, work)
        except JoinRefused as refusal:
            raise precondition(str(refusal)) from refusal
        except JoinDeferred as deferred:
            raise Refused(grpc.StatusCode.UNAVAILABLE, str(deferred)) from deferred
        self._execute()
        return member

    def _check_replaceable(self, variables: tuple[VariableSpec, ...], work: WorkTerms | None) -> None:
        """A model is this job's once it is installed, or while a member that named it has a session, or has lost it and
        may come back. Until then a stray Join must not decide what the job trains. Raises Refused."""
        if self.plan is None:
            return
        coordinator = self._coordinator
        held = bool(coordinator.roster.here())
        if coordinator.initialised or held:
            if work != coordinator.work_terms:
                raise precondition(explain_other_work(coordinator.work_terms, work))
            difference = explain_mismatch(self.plan.variables, variables)
            raise precondition(f"this job trains another model: {difference}")

    def _check_room(self, worker: str, plan: Plan, optimizer: Optimizer) -> None:
        """A worker that has no place yet needs descriptors, and memory of its own under some policies. Raises
        Refused."""
        present = self._coordinator.roster.present
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
        self, worker: str, session: str, rank: int | None, plan: Plan, work: WorkTerms | None
    ) -> Member:
        """Raises JoinRefused, with nothing changed; Refused when the job has failed."""
        admitted: list[Member] = []

        def decide() -> list[Output]:
            now = time.monotonic()
            member, outputs = self._coordinator.join(worker, session, rank, now)
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

    def next_batch(self, worker: str) -> int:
        return self._coordinator.roster.tally(worker).next_batch

    def attach(self, worker: str, incarnation: int, session: str, cut: Callable[[], object]) -> Outbox:
        """A session stream stands; it takes the place of an older one of the same process.

        `cut` breaks it off. Raises Refused for any other process, with nothing changed.
        """
        refusal = self._coordinator.unknown_session(worker, incarnation, session)
        if refusal is not None:
            raise precondition(refusal)
        outbox = Outbox(self.host.owner.loop, session, cut)
        self.routes.outboxes.open(worker, incarnation, outbox)
        self._step(lambda: self._coordinator.connect(worker, incarnation, session, time.monotonic()))
        if self.failure is not None:
            outbox.put(self.routes.stop_notice(self.failure.reason))
        self._execute()
        return outbox

    def detach(self, worker: str, incarnation: int, outbox: Outbox) -> None:
        """The stream of `outbox` is over. A newer stream of the same worker is left alone."""
        if self.routes.outboxes.close(worker, incarnation, outbox):
            self._step(lambda: self._coordinator.disconnect(worker, incarnation, time.monotonic()))
        outbox.end()
        self._execute()

    def begin_inline(self, worker: str, incarnation: int, session: str) -> tuple[Outbox, InlineReply]:
        """Collect this worker's notices from now on, until `end_inline`.

        Raises Refused: UNAVAILABLE while the session is not open, FAILED_PRECONDITION for another worker's.
        """
        return self.routes.outboxes.begin_inline(worker, incarnation, session)

    def end_inline(self, outbox: Outbox, reply: InlineReply) -> None:
        """What is not delivered goes to the worker's session after all."""
        self.routes.outboxes.end_inline(outbox, reply)

    def outboxes(self) -> list[Outbox]:
        """Of the session streams that stand."""
        return self.routes.outboxes.all()

    # Work

    def ready(self, worker: str, incarnation: int, holding: int = 0) -> None:
        self._input(lambda c, now: c.ready(worker, incarnation, now, holding=holding))

    def commit(self, worker: str, incarnation: int, ticket: int, facts: CommitFacts, *, ready: bool) -> None:
        self._input(lambda c, now: c.commit(worker, incarnation, ticket, now, facts, ready=ready))

    def repeated(self, worker: str, ticket: int) -> bool:
        """The worker's ticket is no longer open: a commit of it is a repeated one and changes nothing."""
        found = self._coordinator.tickets.find(ticket, worker)
        return found is not None and found.state != "open"

    def abandon(
        self, worker: str, incarnation: int, ticket: int, reason: str, *, unit_ends: bool = False
    ) -> None:
        self._input(lambda c, now: c.abandon(worker, incarnation, ticket, reason, now, unit_ends=unit_ends))

    def done(self, worker: str, incarnation: int, ends: str = "") -> None:
        self._input(lambda c, now: c.done(worker, incarnation, now, ends=ends))

    def leave(self, worker: str, incarnation: int, reason: str) -> None:
        self._input(lambda c, now: c.leave(worker, incarnation, reason, now))

    def report_metrics(self, worker: str, version: int, metrics: dict[str, float]) -> str | None:
        """The final version's, of the worker that was asked for them, once; before that any version's, of worker 0, in
        rising order: others of worker 0 come late, and are left out. Why they are refused, if they are."""
        asked, final = self._coordinator.evaluator, self._coordinator.version
        stopped = self._coordinator.stopped is not None
        member = self._coordinator.roster.present.get(worker)
        if stopped and worker == asked and version == final and not self.metrics:
            self.metrics = metrics
        elif member is None or member.rank or version > final or (stopped and version == final):
            of = f"{asked}'s of version {final}" if asked is not None and not self.metrics else "none"
            of = of if stopped else f"worker 0's, of versions up to {final}"
            return (
                f"a report of version {version} by {worker}: expected {of} (Stop.evaluate says who is asked)"
            )
        elif stopped or version <= self._evaluated:
            return None
        self._evaluated = version
        t = round(time.monotonic() - self.began, 6)
        line = {"t": t, "kind": "eval", "version": version, "worker": worker, "metrics": metrics}
        self._write_or_fail(lambda: self.routes.run_log.metric(line))
        return None

    def gather_epoch(self, worker: str, incarnation: int, epoch: EpochReport) -> Totals:
        """A member's epoch, and the sums over all. Raises Refused for another's, EpochError."""
        roster = self._coordinator.roster
        member = roster.present.get(worker)
        if member is None or member.incarnation != incarnation:
            # The session finds out by itself, and comes back as another incarnation.
            raise Refused(grpc.StatusCode.UNAVAILABLE, f"{worker} is no member at present")
        return replace(self._epochs.add(member, epoch, roster.by_rank()))

    # Time and the outside world

    def give_up(self, worker: str, reason: str) -> None:
        self._input(lambda c, now: c.give_up(worker, reason, now))

    def tick(self) -> None:
        idle = self.terms.idle_timeout
        if not self._opened:
            if not idle or time.monotonic() - self.began < idle:
                return
            self._open_without_workers()
        self._input(lambda c, now: c.tick(now))
        present = self._coordinator.roster.present.values()
        self.routes.outboxes.end_others({(m.worker, m.incarnation) for m in present})
        self._write_or_fail(self.routes.run_log.flush)
        self._measure()

    def _measure(self) -> None:
        """Memory of what is too small and too often changed to be counted as it changes."""
        unread = [Held(w, "notices", NOTICE_BYTES * count) for w, count in self.routes.outboxes.unread()]
        parts = [Held(MODEL, "log tail", self.routes.tail.nbytes), *unread]
        self._held = [*parts, Held(MODEL, "all of these", sum(part.nbytes for part in parts))]

    def _write_or_fail(self, write: Callable[[], None]) -> None:
        if self.failure is None:
            try:
                write()
            except LogError as error:
                self._fail(str(error), ExitCode.STORAGE)

    def _open_without_workers(self) -> None:
        """The end comes before any worker said what the optimizer is: the log begins all the same."""
        if not self._opened:
            self._open(None)
            self._execute()

    def stop(self, reason: str, *, success: bool, cause: str) -> None:
        self._open_without_workers()
        self._input(lambda c, now: c.stop(reason, now, success=success, cause=cause))

    def look(self, read: Callable[[Coordinator, float], Seen]) -> Seen:
        """What `read` makes of the coordinator and the present time. From any thread."""
        return self.host.owner.ask(lambda: read(self._coordinator, time.monotonic()))

    def report(self) -> JobReport:
        """From any thread."""
        return _with_wait(self.look(report), self.awaited)

    def entries(self, first: int) -> list[Record]:
        """The decision log from entry `first` on, as far as it is remembered, a thousand entries at most."""
        return self.routes.tail.since(first)

    def holdup(self) -> tuple[float, str] | None:
        return holdup(self._coordinator, time.monotonic())

    def stopped(self) -> StopNotice | None:
        """Set once the job has stopped."""
        if self.failure is not None:
            return self.routes.stop_notice(self.failure.reason)
        stopped = self._coordinator.stopped
        if stopped is None:
            return None
        return StopNotice(stopped.reason, stopped.version, stopped.success, 0)


def _with_wait(found: JobReport, awaited: tuple[str, float, float] | None) -> JobReport:
    """The same, with what else is waited for in its note."""
    if awaited is None:
        return found
    what, since, limit = awaited
    waited = time.monotonic() - since
    most = "" if math.isinf(limit) else f", at most {limit:g} s"
    sentence = f"waiting for {what} (since {waited:.1f} s{most})"
    return replace(found, note="; ".join(filter(None, (found.note, sentence))))
