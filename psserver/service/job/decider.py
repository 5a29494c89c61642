"""Decisions: every input takes three steps, and if one fails the job ends.

The coordinator decides, the run log takes the entries, and only then are they sent (`psserver.service.job.routes`).
The log may end early, but it has no gap, and nothing has happened that is not in it.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from psserver.coordinator import Coordinator, Input, Output, Record, inputs
from psserver.coordinator.terms import Stopped
from psserver.decisions import entries
from psserver.facts import VersionFacts
from psserver.service.job.agreement import Agreement
from psserver.service.job.log_file import LogError
from psserver.service.job.routes import Routes
from psserver.service.job.run_log import Flushing, RunLog
from psserver.service.net.loop import settle
from psserver.service.store.checkpoints import Checkpoints
from psserver.service.store.host import ShardHost
from psserver.shard import VersionMade
from pswire import protocol
from pswire.exits import ExitCode
from pswire.logs.events import event
from pswire.v1 import shard_pb2

log = logging.getLogger("ps-server")


@dataclass(slots=True)
class _Waiting:
    """A request of a worker that waits for facts; `decided`: who waits until it is decided."""

    incarnation: int
    request: protocol.Request
    norm: float
    decided: "asyncio.Future[None] | None" = None


@dataclass(frozen=True, slots=True)
class JobFailure:
    """Why a job can decide nothing more, and the exit code for it."""

    reason: str
    code: ExitCode


def ordered_checkpoint(outputs: Sequence[Output]) -> Record | None:
    """Return the last entry if it orders a checkpoint."""
    last = outputs[-1] if outputs else None
    return last if isinstance(last, Record) and isinstance(last.entry, entries.Checkpoint) else None


class Decider:
    """The coordinator, what servers tell it about versions, and the routes of its outputs. The loop's thread owns it.

    `tell_over` is called once, when the job is over.
    """

    # Whether other servers decide the same.
    replicated = False

    def __init__(
        self,
        agreement: Agreement,
        host: ShardHost,
        run_log: RunLog,
        log_to_disk: bool,
        tell_over: Callable[[], object],
    ) -> None:
        terms, policy = agreement.terms, agreement.policy
        self.agreement, self.host = agreement, host
        # When the job began, by this process's clock, less the time in which the job stood still.
        self._began = self.host.runtime.now()
        self.routes = Routes(run_log, host.orders, terms.grace, self.now)
        self.flushing = Flushing(run_log, log_to_disk, host.runtime, self._lost_log)
        self.over = False
        # Set at most once; nothing is decided or written afterwards.
        self.failure: JobFailure | None = None
        self.coordinator = Coordinator(terms, policy)
        self.facts = VersionFacts(terms.servers)
        # By worker: a commit whose ticket's version some server has not told about, and all requests behind it.
        self._waiting: dict[str, deque[_Waiting]] = {}
        # By version: workers whose first request waits for its fact; and those that wait no more.
        self._behind: dict[int, list[str]] = {}
        self._ready: deque[str] = deque()
        # Whether `tell` is under way.
        self._telling = False
        host.orders.executed = partial(self.executed, 0)
        # None if the job takes no checkpoints.
        self.checkpoints: Checkpoints | None = None
        self._tell_over = tell_over

    def now(self) -> float:
        """Return the seconds of the job: those before this process decided, and those that it has run since."""
        return self.host.runtime.now() - self._began

    def hear(self, now: float) -> None:
        """Go on from the job's time `now`, which another process has counted so far."""
        self._began = self.host.runtime.now() - now

    def configure(self, message: shard_pb2.Configure) -> None:
        """Tell every other server the model."""
        for follower in self.routes.followers:
            follower.configure(message)

    def take_up(self, coordinator: Coordinator) -> None:
        """Continue with the coordinator of a saved state, whose log has its first entry."""
        self.coordinator = coordinator
        self.hear(coordinator.state.now)

    def give(self, given: Input) -> list[Output]:
        """Give the coordinator an input, now. Whoever gives one that decides something calls `step`."""
        return self.coordinator.take(given, self.now())

    def input(self, given: Input) -> list[Output]:
        """Take an input, and execute what was decided; otherwise as `step`."""
        outputs = self.step(lambda: self.give(given))
        self.execute()
        return outputs

    def handle(
        self, worker: str, incarnation: int, request: protocol.Request, norm: float = math.nan
    ) -> None:
        """Take a request of that incarnation of a worker; `norm` as in `Requested`.

        A commit waits until every server has told about the version of its ticket: under a barrier, the fact of a
        version always precedes the commits that follow from it.
        """
        if worker in self._waiting:
            self._waiting[worker].append(_Waiting(incarnation, request, norm))
        elif (version := self._awaited(worker, request)) is not None:
            self._waiting[worker] = deque([_Waiting(incarnation, request, norm)])
            self._behind.setdefault(version, []).append(worker)
        else:
            self._handle(worker, incarnation, request, norm)

    def _handle(self, worker: str, incarnation: int, request: protocol.Request, norm: float) -> None:
        self.input(inputs.Requested(worker, incarnation, request, norm))
        if isinstance(request, protocol.Done) and request.ends:
            self._told_to_wait(worker, request.ends)

    def _told_to_wait(self, worker: str, ends: str) -> None:
        """Warn where a worker asked to end the job, and it goes on."""
        coordinator = self.coordinator
        robust = coordinator.policy.tensors.aggregator != "mean"
        if robust and coordinator.state.stopped is None and not coordinator.state.resting:
            log.warning(
                "%s asked to end the job (%s); under %s it goes on until more workers ask than the policy tolerates",
                *(worker, ends, coordinator.policy.name),
                extra=event("end_awaits_others", worker=worker),
            )

    async def take(self, worker: str, incarnation: int, commit: protocol.Commit, norm: float) -> None:
        """Take a commit, as `handle`. Returns when it is decided and its answer may leave.

        A commit that is sent again while it waits is decided once.
        """
        waits = self._waiting_commit(worker, commit.ticket)
        if waits is None:
            self.handle(worker, incarnation, commit, norm)
            waits = self._waiting_commit(worker, commit.ticket)
        if waits is not None:
            if waits.decided is None:
                waits.decided = self.host.runtime.loop.create_future()
            # Another try waits for the same.
            await asyncio.shield(waits.decided)

    def _waiting_commit(self, worker: str, ticket: int) -> _Waiting | None:
        requests = ((each, each.request) for each in self._waiting.get(worker, ()))
        return next((w for w, r in requests if isinstance(r, protocol.Commit) and r.ticket == ticket), None)

    @property
    def stopped(self) -> Stopped | None:
        """The stop of the job, once its answer may leave."""
        return self.coordinator.state.stopped

    async def settled(self) -> bool:
        """Wait until the log has everything decided so far. Returns False if it cannot be written."""
        return await self.flushing.written()

    def step(self, decide: Callable[[], list[Output]]) -> list[Output]:
        """Decide, write, send. Returns the outputs; none if the job has failed, which a failure here leads to."""
        if self.failure is not None:
            return []
        try:
            outputs = decide()
            self._decided(outputs)
        except Exception as error:
            self._failed(error)
            return []
        if self._waiting and self.coordinator.state.stopped is not None:
            # They wait for nothing any more.
            self._ready.extend(self._waiting)
            self.tell()
        return outputs

    def _failed(self, error: Exception) -> None:
        """End the job, because a decision, or the log of it, has failed."""
        if isinstance(error, LogError):
            self.fail(str(error), error.code)
            return
        log.error("a decision of the job failed", exc_info=error, extra=event("decision_failed"))
        self.fail(f"a decision failed: {type(error).__name__}: {error}", ExitCode.INTERNAL)

    def _decided(self, outputs: list[Output]) -> None:
        self._carry_out(outputs, self.coordinator.state.version)
        if self.coordinator.state.over:
            self._end()

    def _carry_out(self, outputs: list[Output], version: int) -> None:
        """Write and send. `version`: the newest after these outputs. Raises LogError."""
        written = self.routes.write(outputs)
        if written.orders:
            self.flushing.taken()
        self.routes.send(written, version)
        if self.checkpoints is not None:
            self._save(outputs)

    def execute(self) -> None:
        """Execute the orders of this server's shard."""
        self.host.orders.execute_submitted()

    def executed(self, server: int, fact: VersionMade) -> None:
        """Take what a server tells about a version. Commits that waited for it follow."""
        self.facts.take(server, fact)
        self.tell()

    def tell(self) -> None:
        """Tell the coordinator about the versions that all servers have made, and decide the requests behind them."""
        if self._telling:
            # What follows from one of them was executed: the call under way goes on with it.
            return
        self._telling = True
        try:
            while self.failure is None and (self._tell_next() or self._decide_next()):
                pass
        finally:
            self._telling = False

    def _tell_next(self) -> bool:
        """Tell the coordinator one fact; return whether there was one."""
        plan = self.agreement.plan
        found = None if plan is None else self.facts.next(self.coordinator.state.kept_back.told, plan)
        if found is None:
            return False
        if found.told:
            try:
                self.give(found)
            except Exception as error:
                self._failed(error)
        else:
            self.input(found)
        self._ready.extend(self._behind.pop(found.version, ()))
        return True

    def _decide_next(self) -> bool:
        """Decide one request that waited; return whether there was one that waits no more."""
        while self._ready:
            worker = self._ready[0]
            waiting = self._waiting.get(worker)
            version = self._awaited(worker, waiting[0].request) if waiting else None
            if not waiting or version is not None:
                self._ready.popleft()
                if version is not None:
                    self._behind.setdefault(version, []).append(worker)
                continue
            first = waiting.popleft()
            if not waiting:
                del self._waiting[worker]
            self._handle(worker, first.incarnation, first.request, first.norm)
            if first.decided is not None:
                settle(first.decided)
            return True
        return False

    def _awaited(self, worker: str, request: protocol.Request) -> int | None:
        """Return the version of a commit's ticket, if a server has not told about it yet, which it does soon."""
        state = self.coordinator.state
        told = state.kept_back.told
        if not isinstance(request, protocol.Commit) or told >= state.version or state.stopped is not None:
            return None
        ticket = state.tickets.find(request.ticket, worker)
        return ticket.base if ticket is not None and not ticket.initialise and ticket.base > told else None

    def unsaved(self, version: int, reason: str) -> None:
        """Take note of a checkpoint that failed."""
        self.input(inputs.SaveFailed(version, reason))

    def write_or_fail(self, write: Callable[[], None]) -> None:
        """Write something besides the log to the run folder; end the job if that fails."""
        if self.failure is None:
            try:
                write()
            except LogError as error:
                self._lost_log(error)

    def fail(self, reason: str, code: ExitCode) -> None:
        """End a job that can decide nothing more. Every worker is sent a stop, and nothing else."""
        log.error("the job ends: %s", reason, extra=event("job_failed"))
        self.failure = JobFailure(reason, code)
        self.routes.outboxes.post_all(self.routes.stop_notice(reason))
        self._end()

    def _save(self, outputs: list[Output]) -> None:
        """Begin a checkpoint if the last entry orders one; the servers have been sent that entry."""
        record, plan = ordered_checkpoint(outputs), self.agreement.plan
        if self.checkpoints is not None and plan is not None and record is not None:
            self.checkpoints.order(record, self._state_to_save, plan)

    def _state_to_save(self) -> dict[str, Any]:
        """Return the coordinator's state behind the newest outputs. Raises StateError."""
        return self.coordinator.saved()

    def _lost_log(self, error: LogError) -> None:
        if self.failure is None:
            self.fail(str(error), error.code)

    def _end(self) -> None:
        # Nobody decides any more what waits.
        for each in [each for waiting in self._waiting.values() for each in waiting]:
            if each.decided is not None:
                settle(each.decided)
        self._waiting.clear()
        self._behind.clear()
        if not self.over:
            self.over = True
            self._tell_over()
