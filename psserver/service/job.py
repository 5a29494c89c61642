"""The job: one coordinator under one lock, and the routes of what it decides.

Every input takes the lock and goes three steps: the coordinator decides, the
run log takes its entries, and only then does anybody hear of them (the local
shard, the followers, the outboxes of the workers' sessions). Where one of the
steps fails the job ends with a sentence: the log may end early, but it has no
gap, and nothing happened that it does not tell.
"""

import hmac
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc

from psserver.coordinator import Coordinator, JobTerms, JoinRefused, Output, Record, Send, entries
from psserver.coordinator.entries import Entry
from psserver.coordinator.members import Member
from psserver.coordinator.outputs import Notice, StopNotice
from psserver.coordinator.status import JobReport, holdup, report
from psserver.optimizers import Optimizer, OptimizerError
from psserver.order_translation import OrderTranslator
from psserver.policies import Policy, advice
from psserver.service.agreement import agreed
from psserver.service.followers import Follower
from psserver.service.json_lines import LogError
from psserver.service.outbox import InlineReply, Outbox
from psserver.service.rpc.registration import Refused, precondition
from psserver.service.run_log import RunLog
from psserver.service.shard_host import ShardHost
from psserver.shard import Order
from pswire.exits import ExitCode
from pswire.plan import Plan, VariableSpec, explain_mismatch, make_plan
from pswire.specs import specs_to_wire
from pswire.v1 import shard_pb2

log = logging.getLogger("ps-server")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a job could not decide any more, and the exit code that says so."""

    reason: str
    code: ExitCode


class Job:
    """Thread-safe face of the coordinator. Its lock owns coordinator, run log, outboxes and all that is said here."""

    def __init__(
        self,
        terms: JobTerms,
        policy: Policy,
        optimizer: Optimizer | None,
        host: ShardHost,
        run_log: RunLog,
        announce: Callable[[Plan], None],
    ) -> None:
        self.terms = terms
        self.policy = policy
        self.optimizer = optimizer
        self.host = host
        self.run_log = run_log
        self.followers: list[Follower] = []
        self.plan: Plan | None = None
        self.metrics: dict[str, float] = {}
        self.over = threading.Event()
        # Set at most once; nothing is decided or written afterwards.
        self.failure: Failure | None = None
        # Entries of the log that were told to shards, and the version that they make.
        self.told = self.version = 0
        self.began = time.monotonic()
        self.first_grant: float | None = None
        self.stop_notice_at: float | None = None
        self._announce = announce
        self._lock = threading.Lock()
        self._dispatch = OrderTranslator()
        self._outboxes: dict[tuple[str, int], Outbox] = {}
        self._coordinator = Coordinator(terms, policy, self.began)
        self._opened = False

    def open(self) -> None:
        """The log's first entry; it names the optimizer, so it may have to wait for the first worker."""
        if self.optimizer is not None:
            with self._lock:
                self._open(self.optimizer)

    def _open(self, optimizer: Optimizer | None) -> None:
        self._opened = True
        if optimizer is not None:
            self._coordinator.agree(optimizer.config)
            advised = advice(self.policy.name, optimizer.config)
            if advised is not None:
                log.warning("%s", advised)
        self._step(self._coordinator.opening)

    @property
    def coordinator(self) -> Coordinator:
        """For reading once the job is over; while it runs use `report`."""
        return self._coordinator

    # Inputs

    def _input(self, step: Callable[[Coordinator, float], list[Output]]) -> None:
        with self._lock:
            self._step(lambda: step(self._coordinator, time.monotonic()))
        self.host.orders.execute_submitted(patient=False)

    def _step(self, decide: Callable[[], list[Output]]) -> None:
        """Decide, write, tell. A failure ends the job; JoinRefused is an answer, with nothing changed."""
        if self.failure is not None:
            return
        try:
            outputs = decide()
            orders = self._write(outputs)
            self._tell(outputs, orders)
        except JoinRefused:
            raise
        except LogError as error:
            self._fail(str(error), ExitCode.STORAGE)
        except Exception as error:
            log.exception("a decision of the job failed")
            self._fail(f"a decision failed: {type(error).__name__}: {error}", ExitCode.INTERNAL)

    def _write(self, outputs: list[Output]) -> list[tuple[int, Order]]:
        """The entries among `outputs` are accepted by the log's writer; what shards make of them."""
        orders = []
        for output in outputs:
            if isinstance(output, Record):
                orders.append((output.index, self._dispatch.order(output.entry)))
                self.run_log.append(output)
        return orders

    def _tell(self, outputs: list[Output], orders: list[tuple[int, Order]]) -> None:
        if orders:
            self.host.orders.submit(orders)
            for follower in self.followers:
                follower.send(orders)
            self.told, self.version = orders[-1][0] + 1, self._coordinator.version
        for output in outputs:
            match output:
                case Record(_, _, entry):
                    self._notice(entry)
                case Send(worker, incarnation, notice):
                    self._post(worker, incarnation, notice)
        if self._coordinator.over:
            self.over.set()

    def _fail(self, reason: str, code: ExitCode) -> None:
        """The end of a job that can decide nothing more: everybody hears that, and nothing else."""
        log.error("the job ends: %s", reason)
        self.failure = Failure(reason, code)
        for outbox in self._outboxes.values():
            notice = StopNotice(reason, self.version, False, self.told)
            (outbox.diversion or outbox).put(notice)
        self.over.set()

    def _notice(self, entry: Entry) -> None:
        """What the summary needs to know, and what whoever reads the server's log wants to."""
        match entry:
            case entries.Grant():
                self.first_grant = self.first_grant or time.monotonic()
            case entries.Stop():
                self.stop_notice_at = time.monotonic()
            case entries.Lost(worker):
                log.warning(
                    "%s: its connection is lost; it has %.1f s to come back", worker, self.terms.grace
                )
            case entries.Back(worker):
                log.info("%s is back", worker)
            case entries.Leave(worker, reason):
                log.info("%s left: %s", worker, reason)
            case entries.Done(worker):
                log.info("%s has no more data", worker)

    def _post(self, worker: str, incarnation: int, notice: Notice) -> None:
        outbox = self._outboxes.get((worker, incarnation))
        if outbox is None:
            return
        if outbox.diversion is not None:
            outbox.diversion.put(notice)
        else:
            outbox.put(notice)

    # Members

    def join(
        self,
        variables: tuple[VariableSpec, ...],
        plan: str,
        worker: str,
        session: str,
        rank: int | None,
        optimizer: str = "",
    ) -> Member:
        """Raises Refused when model or optimizer are other ones, PlanError when it cannot be planned."""
        proposed = make_plan(variables, self.terms.servers)
        if plan != proposed.fingerprint:
            raise precondition(
                f"plan fingerprint: expected {proposed.fingerprint} for these variables on {self.terms.servers} "
                f"servers, got {plan!r}: is every --ps-hosts the same, and the software the same version?"
            )
        with self._lock:
            if self.plan is not None and proposed.fingerprint != self.plan.fingerprint:
                difference = explain_mismatch(self.plan.variables, variables)
                raise precondition(f"this job trains another model: {difference}")
            chosen = agreed(self.optimizer, optimizer)
            if self.plan is None:
                # First of all, because it may fail: then nothing has changed.
                self._hold(proposed, chosen)
                self.optimizer = chosen
            if not self._opened:
                self._open(chosen)
            try:
                member = self._admit(worker, session, rank, proposed)
            except JoinRefused as refusal:
                raise precondition(str(refusal)) from refusal
        self.host.orders.execute_submitted(patient=False)
        return member

    def _admit(self, worker: str, session: str, rank: int | None, plan: Plan) -> Member:
        """Raises JoinRefused, with nothing changed; Refused when the job has failed."""
        admitted: list[Member] = []

        def decide() -> list[Output]:
            member, outputs = self._coordinator.join(worker, session, rank, time.monotonic())
            if self.plan is None:
                self._adopt(plan)
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

    def _adopt(self, plan: Plan) -> None:
        assert self.optimizer is not None
        self.plan = plan
        message = shard_pb2.Configure(
            variables=specs_to_wire(plan.variables),
            plan=plan.fingerprint,
            optimizer=json.dumps(self.optimizer.config),
            tensors=json.dumps(self.policy.tensors.config),
        )
        for follower in self.followers:
            follower.configure(message)
        self._announce(plan)

    def next_batch(self, worker: str) -> int:
        with self._lock:
            return self._coordinator.roster.tally(worker).next_batch

    def attach(self, worker: str, incarnation: int, session: str, cut: Callable[[], object]) -> Outbox:
        """A session stream stands; it takes the place of an older one of the same process.

        `cut` breaks it off. Raises Refused for anybody else, with nothing changed.
        """
        outbox = Outbox(session, cut)
        with self._lock:
            stranger = self._coordinator.stranger(worker, incarnation, session)
            if stranger is not None:
                raise precondition(stranger)
            before = self._outboxes.pop((worker, incarnation), None)
            if before is not None:
                before.end()
            self._outboxes[worker, incarnation] = outbox
            self._step(lambda: self._coordinator.connect(worker, incarnation, session, time.monotonic()))
            if self.failure is not None:
                outbox.put(StopNotice(self.failure.reason, self.version, False, self.told))
        self.host.orders.execute_submitted(patient=False)
        return outbox

    def detach(self, worker: str, incarnation: int, outbox: Outbox) -> None:
        """The stream of `outbox` is over. A newer stream of the same worker is left alone."""
        with self._lock:
            if self._outboxes.get((worker, incarnation)) is outbox:
                del self._outboxes[worker, incarnation]
                self._step(lambda: self._coordinator.disconnect(worker, incarnation, time.monotonic()))
            outbox.end()
        self.host.orders.execute_submitted(patient=False)

    @contextmanager
    def divert(self, worker: str, incarnation: int, session: str) -> Iterator[InlineReply]:
        """Collect this worker's notices; what is not delivered goes to its session after all.

        Raises Refused: UNAVAILABLE while the session is not open, FAILED_PRECONDITION for another one's.
        """
        diversion = InlineReply()
        with self._lock:
            outbox = self._outboxes.get((worker, incarnation))
            if outbox is None:
                # It may be on its way back; the commit is taken by the session then.
                message = f"worker {worker!r}, incarnation {incarnation}, has no open session now"
                raise Refused(grpc.StatusCode.UNAVAILABLE, message)
            if not hmac.compare_digest(outbox.session.encode(), session.encode()):
                raise precondition(f"worker {worker!r} is another session's; join first")
            outbox.diversion = diversion
        try:
            yield diversion
        finally:
            with self._lock:
                if outbox.diversion is diversion:
                    outbox.diversion = None
                for notice in diversion.undelivered():
                    outbox.put(notice)

    # Work

    def ready(self, worker: str, incarnation: int, holding: int = 0) -> None:
        self._input(lambda c, now: c.ready(worker, incarnation, now, holding=holding))

    def commit(
        self,
        worker: str,
        incarnation: int,
        ticket: int,
        *,
        batch: int,
        samples: int,
        loss: float,
        norm: float,
        ready: bool,
        times: entries.Times,
    ) -> None:
        self._input(
            lambda c, now: c.commit(
                worker,
                incarnation,
                ticket,
                now,
                batch=batch,
                samples=samples,
                loss=loss,
                norm=norm,
                ready=ready,
                times=times,
            )
        )

    def repeated(self, worker: str, ticket: int) -> bool:
        """The worker's ticket is no longer open: a commit of it is a repeated one and changes nothing."""
        with self._lock:
            found = self._coordinator.tickets.find(ticket, worker)
            return found is not None and found.state != "open"

    def abandon(self, worker: str, incarnation: int, ticket: int, reason: str) -> None:
        self._input(lambda c, now: c.abandon(worker, incarnation, ticket, reason, now))

    def done(self, worker: str, incarnation: int) -> None:
        self._input(lambda c, now: c.done(worker, incarnation, now))

    def leave(self, worker: str, incarnation: int, reason: str) -> None:
        self._input(lambda c, now: c.leave(worker, incarnation, reason, now))

    def report_metrics(self, worker: str, version: int, metrics: dict[str, float]) -> None:
        with self._lock:
            self.metrics = metrics
            t = round(time.monotonic() - self.began, 6)
            line = {"t": t, "kind": "eval", "version": version, "worker": worker, "metrics": metrics}
            self._write_or_fail(lambda: self.run_log.metric(line))

    # Time and the outside world

    def tick(self) -> None:
        idle = self.terms.idle_timeout
        if not self._opened:
            if not idle or time.monotonic() - self.began < idle:
                return
            self._open_without_workers()
        self._input(lambda c, now: c.tick(now))
        with self._lock:
            self._write_or_fail(self.run_log.flush)

    def _write_or_fail(self, write: Callable[[], None]) -> None:
        if self.failure is None:
            try:
                write()
            except LogError as error:
                self._fail(str(error), ExitCode.STORAGE)

    def _open_without_workers(self) -> None:
        """The end comes before any worker said what the optimizer is: the log begins all the same."""
        with self._lock:
            if not self._opened:
                self._open(None)

    def stop(self, reason: str, *, success: bool, cause: str) -> None:
        self._open_without_workers()
        self._input(lambda c, now: c.stop(reason, now, success=success, cause=cause))

    def refuse_all(self) -> None:
        """End every session stream."""
        with self._lock:
            for outbox in self._outboxes.values():
                outbox.notices.put(None)

    def report(self) -> JobReport:
        with self._lock:
            return report(self._coordinator, time.monotonic())

    def holdup(self) -> tuple[float, str] | None:
        with self._lock:
            return holdup(self._coordinator, time.monotonic())

    def stopped(self) -> StopNotice | None:
        """Set once the job has stopped."""
        with self._lock:
            if self.failure is not None:
                return StopNotice(self.failure.reason, self.version, False, self.told)
            stopped = self._coordinator.stopped
            if stopped is None:
                return None
            return StopNotice(stopped.reason, stopped.version, stopped.success, 0)
