"""The job as its peers see it: sessions, work, time. How it decides is in `psserver.service.deciding`."""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import grpc

from psserver.coordinator import (
    CommitFacts,
    Coordinator,
    JobTerms,
    Record,
)
from psserver.coordinator.epochs import EpochSums, Totals
from psserver.coordinator.epochs import Report as EpochReport
from psserver.coordinator.outputs import StopNotice
from psserver.coordinator.sentences import named
from psserver.coordinator.status import JobReport, holdup, report
from psserver.optimizers import Optimizer
from psserver.policies import Policy
from psserver.service.deciding.joining import Joining
from psserver.service.errors import Refused, precondition
from psserver.service.limits.ledger import MODEL, Held
from psserver.service.log.flushing import LogFlush
from psserver.service.log.run_log import RunLog
from psserver.service.outbox import InlineReply, Outbox
from psserver.service.progress import Extent, HowFar, Progress
from psserver.service.shard.host import ShardHost
from pswire.logs.events import event
from pswire.model.plan import Plan

log = logging.getLogger("ps-server")

# Of memory, about: a notice with a sentence.
NOTICE_BYTES = 512

Seen = TypeVar("Seen")


class Job(Joining):
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
        flush: LogFlush,
        security: str = "",
    ) -> None:
        """`security`: how its servers are protected, for the summary."""
        super().__init__(terms, policy, optimizer, host, run_log, announce, over, flush)
        self.security = security
        self.metrics: dict[str, float] = {}
        self._progress = Progress()
        # The newest version that was evaluated while the job went on.
        self._evaluated = -1
        # What the end waits for beside members: what, since when (monotonic), and for how many seconds at most.
        self.awaited: tuple[str, float, float] | None = None
        # What the log's tail and unread notices took when they were last looked at.
        self._held: list[Held] = []
        host.memory.ledger.watch(
            lambda: sum(held.nbytes for held in self._held[-1:]), lambda: self._held[:-1]
        )
        host.memory.ledger.watch(
            lambda: self._coordinator.roster.nbytes,
            lambda: [Held(MODEL, "names", self._coordinator.roster.nbytes)],
        )
        self._epochs = EpochSums(terms.report_limit, self.began)
        self._told_of_metrics = False

    def open(self) -> None:
        """The log's first entry; it names the optimizer, so it may have to wait for the first worker."""
        rolled_back = self._rolled_back
        if rolled_back is not None:
            self._input(lambda c, now: c.resume(rolled_back, now))
        elif self.optimizer is not None:
            self._open(self.optimizer)
            self._execute()

    def checkpoint(self) -> None:
        """Save what there is, before a signal ends the job."""
        if self.checkpoints is not None:
            self._input(lambda c, now: c.checkpoint(now))

    # Members

    def next_batch(self, worker: str) -> int:
        return self._coordinator.roster.tally(worker).next_batch

    def has_committed(self, worker: str) -> bool:
        """A contribution of that name was taken, ever."""
        tally = self._coordinator.roster.tallies.get(worker)
        return tally is not None and tally.committed > 0

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

    def tell_extent(self, worker: str, incarnation: int, extent: Extent) -> None:
        """How much data a member has. Nobody else's is taken."""
        member = self._coordinator.roster.present.get(worker)
        if member is not None and member.incarnation == incarnation:
            self._progress.told(worker, extent)

    def progress(self) -> HowFar | None:
        """How far the job is, where that is known. From any thread."""
        return self.look(self._progress.how_far)

    def gather_epoch(self, worker: str, incarnation: int, epoch: EpochReport) -> Totals:
        """A member's epoch, and the sums over all. Raises Refused for another's, EpochError."""
        roster = self._coordinator.roster
        member = roster.present.get(worker)
        if member is None or member.incarnation != incarnation:
            # The session finds out by itself, and comes back as another incarnation.
            raise Refused(grpc.StatusCode.UNAVAILABLE, f"{worker} is no member at present")
        totals = self._epochs.add(member, epoch, roster, time.monotonic())
        if totals.differing and not self._told_of_metrics:
            self._told_of_metrics = True
            log.warning(
                "the metrics of %s are not those of %s, and are added up apart from them: compile all workers' models "
                "with the same metrics",
                *(named(sorted(totals.workers)), named(sorted(totals.differing))),
                extra=event("metrics_differ"),
            )
        return totals

    # Time and the outside world

    def give_up(self, worker: str, reason: str) -> None:
        self._input(lambda c, now: c.give_up(worker, reason, now))

    def tick(self) -> None:
        idle = self.terms.idle_timeout
        if not self._opened:
            if not idle or time.monotonic() - self.began < idle:
                return
            self._open_without_workers()
        self._end_unanswered()
        self._give_up_silent()
        self._input(lambda c, now: c.tick(now))
        self._progress.look(self._coordinator, time.monotonic())
        present = self._coordinator.roster.present.values()
        self.routes.outboxes.end_others({(m.worker, m.incarnation) for m in present})
        self._write_or_fail(lambda: self.flushing.tick(time.monotonic()))
        self._measure()

    def _measure(self) -> None:
        """Memory of what is too small and too often changed to be counted as it changes."""
        unread = [Held(w, "notices", NOTICE_BYTES * count) for w, count in self.routes.outboxes.unread()]
        parts = [Held(MODEL, "log tail", self.routes.tail.nbytes), *unread]
        self._held = [*parts, Held(MODEL, "all of these", sum(part.nbytes for part in parts))]

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
        found, epoch, answers = self.look(
            lambda c, now: (report(c, now), self._epoch_awaited(c, now), self.unanswered or self.silent)
        )
        return _with_wait(_with_wait(found, epoch), self.awaited or answers)

    def _epoch_awaited(self, coordinator: Coordinator, now: float) -> tuple[str, float, float] | None:
        return self._epochs.awaited(coordinator.roster, now) if coordinator.stopped is None else None

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
