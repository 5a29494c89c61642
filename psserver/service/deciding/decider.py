"""Deciding: each input goes three steps, and where one of them fails the job ends.

The coordinator decides, the run log takes its entries, and only then are they sent
(`psserver.service.routes`). The log may end early, but it has no gap, and nothing
has happened that is not in it.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from psserver.assurance import ShardAssurance
from psserver.coordinator import (
    Coordinator,
    JobTerms,
    JoinDeferred,
    JoinRefused,
    Output,
    Record,
    entries,
)
from psserver.optimizers import Optimizer
from psserver.policies import Policy, advice
from psserver.service.log.flushing import Flushing, LogFlush
from psserver.service.log.json_lines import LogError
from psserver.service.log.run_log import RunLog
from psserver.service.routes import Routes
from psserver.service.saving.whole import PATIENCE, Checkpoints, limit
from psserver.service.shard.host import ShardHost
from psserver.service.trials import TrialAnswers
from pswire.exits import ExitCode
from pswire.logs.events import event
from pswire.model.plan import Plan

log = logging.getLogger("ps-server")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a job could not decide any more, and the exit code that says so."""

    reason: str
    code: ExitCode


class Decider:
    """The coordinator, what assures it, and where its outputs go. The loop's thread owns it.

    `over` is called once, when the job is over.
    """

    def __init__(
        self,
        terms: JobTerms,
        policy: Policy,
        optimizer: Optimizer | None,
        host: ShardHost,
        run_log: RunLog,
        over: Callable[[], object],
        flush: LogFlush,
    ) -> None:
        self.terms = terms
        self.policy = policy
        # `configured`: None where it is the first worker's.
        self.optimizer = self.configured = optimizer
        self.host = host
        self.routes = Routes(run_log, host.orders, terms.grace)
        self.flushing = Flushing(run_log, flush, lambda: host.owner.loop, self._lost_log)
        self.plan: Plan | None = None
        self.over = False
        # Set at most once; nothing is decided or written afterwards.
        self.failure: Failure | None = None
        self.began = time.monotonic()
        self._tell_over = over
        self._assurance = ShardAssurance(policy.tensors, optimizer)
        self._coordinator = Coordinator(terms, policy, self.began, self._assurance)
        self._answers = TrialAnswers(terms.servers)
        self._opened = False
        # The log's first entry names the optimizer. Where that is the workers', a Join alone decides nothing: what is
        # to be written waits here until a session stands, and another Join may name another. None: nothing waits.
        self._unwritten: list[Output] | None = [] if optimizer is None else None
        # Where the job takes some.
        self.checkpoints: Checkpoints | None = None

    @property
    def coordinator(self) -> Coordinator:
        """For reading once the job is over; while it runs use `report`."""
        return self._coordinator

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

    def _to_write(self, outputs: list[Output]) -> list[Output]:
        """`outputs`, behind those that waited; none while they wait."""
        if self._unwritten is None:
            return outputs
        self._unwritten += outputs
        if not self._coordinator.roster.here() and self._coordinator.stopped is None:
            return []
        outputs, self._unwritten = self._unwritten, None
        return outputs

    def _input(self, step: Callable[[Coordinator, float], list[Output]]) -> None:
        self._step(lambda: step(self._coordinator, time.monotonic()))
        self._execute()

    def _step(self, decide: Callable[[], list[Output]]) -> None:
        """Decide, write, send. A failure ends the job; JoinRefused is an answer, with nothing changed."""
        if self.failure is not None:
            return
        try:
            outputs = self._to_write(decide())
            written = self.routes.write(outputs)
            if written.orders:
                self.flushing.taken()
            self.routes.send(written, self._coordinator.version)
            for trial in written.trials:
                self._answers.expect(trial.number, time.monotonic())
                self.routes.ask(trial, self.tried)
            if self.checkpoints is not None:
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

    def tried(self, server: int, trial: int, finite: bool, largest: float) -> None:
        """A server's answer to the question whether an update is finite."""
        found = self._answers.take(server, trial, finite, largest)
        if found is not None:
            self._step(lambda: self._coordinator.tried(trial, *found, time.monotonic()))
        self._execute()

    @property
    def unanswered(self) -> tuple[str, float, float] | None:
        """What the job waits for while servers are asked about an update: what, since when (monotonic), and for how
        many seconds at most. A server whose process hangs while its connection stands is not lost, and says nothing."""
        if not self._coordinator.trying or self.plan is None:
            return None
        what = (
            f"{self._answers.missing} to say whether version {self._coordinator.version + 1} would be finite"
        )
        return what, self._answers.since, limit(self.plan, self.terms.worker_timeout)

    def _end_unanswered(self) -> None:
        """Nothing can be decided without the answer."""
        waited = self.unanswered
        if waited is None or time.monotonic() - waited[1] < waited[2]:
            return
        reason = f"waited {waited[2]:g} s for {waited[0]}: not lost, but silent (see its process and its log)"
        log.error("%s", reason, extra=event("trial_unanswered", servers=self._answers.missing))
        self._input(lambda c, now: c.stop(reason, now, success=False, cause="server"))

    @property
    def silent(self) -> tuple[str, float, float] | None:
        """A server that hangs while its connection stands, as `unanswered`: the one that is silent for longest."""
        found = [waited for follower in self.routes.followers if (waited := follower.silent(self._patience))]
        return min(found, key=lambda waited: waited[1], default=None)

    @property
    def _patience(self) -> float:
        """Seconds for a server that may have much to do."""
        timeout = self.terms.worker_timeout
        return PATIENCE + 4 * timeout if self.plan is None else limit(self.plan, timeout)

    def _give_up_silent(self) -> None:
        """A server that hangs is lost, like one that is gone."""
        if self._coordinator.stopped is not None:
            # The end has limits of its own.
            return
        for follower in self.routes.followers:
            waited = follower.silent(self._patience)
            if waited is not None and time.monotonic() - waited[1] >= waited[2]:
                follower.give_up(f"waited {waited[2]:g} s for {waited[0]} (see its process and its log)")

    def _fail(self, reason: str, code: ExitCode) -> None:
        """The end of a job that can decide nothing more: every worker is sent that, and nothing else."""
        log.error("the job ends: %s", reason, extra=event("job_failed"))
        self.failure = Failure(reason, code)
        self.routes.outboxes.post_all(self.routes.stop_notice(reason))
        self._end()

    def _lost_log(self, error: LogError) -> None:
        if self.failure is None:
            self._fail(str(error), ExitCode.STORAGE)

    def _write_or_fail(self, write: Callable[[], None]) -> None:
        if self.failure is None:
            try:
                write()
            except LogError as error:
                self._lost_log(error)

    def _end(self) -> None:
        if not self.over:
            self.over = True
            self._tell_over()

    def _execute(self) -> None:
        self.host.orders.execute_submitted()
