"""The job as its peers see it: sessions, work, time, and its status."""

import json
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from psserver.checkpoint import Checkpoint
from psserver.codec_rules import check_codec
from psserver.coordinator import Coordinator, JobTerms, declined, inputs
from psserver.coordinator.status import JobReport, report
from psserver.coordinator.terms import Extent
from psserver.policies import PolicyError
from psserver.policies.succession import successor
from psserver.service.errors import precondition
from psserver.service.job.decider import Decider
from psserver.service.job.joining import JobModel, Joining, resume
from psserver.service.job.log_file import LogError
from psserver.service.job.outbox import Outbox
from psserver.service.job.reports import Epochs, EvaluationReports, ProgressReports
from psserver.service.store.checkpoints import PATIENCE, limit
from psserver.service.store.resume_point import ResumePoint
from pswire import protocol
from pswire.logs.events import event
from pswire.model.plan import Plan

log = logging.getLogger("ps-server")

# What is waited for, since when (monotonic), and for how many seconds at most.
Wait = tuple[str, float, float]


class SilentServers:
    """Servers that hang while their connection stands: not lost, but silent. `tick` gives them up. The loop's
    thread owns it."""

    def __init__(self, decider: Decider) -> None:
        self._decider = decider

    @property
    def silent(self) -> Wait | None:
        """The server that has been silent for longest, if one is."""
        followers, patience = self._decider.routes.followers, self._patience
        found = [waited for follower in followers if (waited := follower.silent(patience))]
        return min(found, key=lambda waited: waited[1], default=None)

    @property
    def _patience(self) -> float:
        """Seconds for a server that may be busy."""
        agreement = self._decider.agreement
        timeout = agreement.terms.worker_timeout
        return PATIENCE + 4 * timeout if agreement.plan is None else limit(agreement.plan, timeout)

    def tick(self) -> None:
        """Count servers as lost that have been silent for too long."""
        if self._decider.coordinator.state.stopped is not None:
            # The end has limits of its own.
            return
        for follower in self._decider.routes.followers:
            waited = follower.silent(self._patience)
            if waited is not None and self._decider.host.runtime.now() - waited[1] >= waited[2]:
                follower.give_up(f"waited {waited[2]:g} s for {waited[0]} (see its process and its log)")


class ServedJob:
    """The coordinator among its peers: sessions, members, time and status. `decider` takes its decisions.

    The loop's thread owns it and its parts. `announce` is called
    with the plan once it is known. `security`: how its servers are protected, for the summary.
    """

    def __init__(self, decider: Decider, announce: Callable[[Plan], None], security: str = "") -> None:
        self.decider, self.host, self.agreement = decider, decider.host, decider.agreement
        self.security = security
        self.routes, self.flushing = decider.routes, decider.flushing
        self.servers = SilentServers(decider)
        self.evaluations = EvaluationReports(decider)
        self.epochs = Epochs(decider, self.evaluations)
        self._model = JobModel(decider, announce)
        self.joining = Joining(decider, self._model)
        self.progress = ProgressReports()
        # Transports by worker, as last reported; for people, no decision depends on them.
        self.carriers: dict[str, Sequence[str]] = {}
        self._first: inputs.Opened | inputs.Resumed = inputs.Opened()
        # What the end waits for beside members: what, since when (monotonic), and for how many seconds at most.
        self.awaited: Wait | None = None

    @property
    def terms(self) -> JobTerms:
        return self.agreement.terms

    @property
    def coordinator(self) -> Coordinator:
        return self.decider.coordinator

    # The beginning and the end

    def go_on(self, checkpoint: Checkpoint, found: ResumePoint) -> None:
        """Resume from a checkpoint; `open` comes next. Raises CheckpointError."""
        resume(self.decider, self._model, checkpoint, found)
        # Epochs count from where the job goes on.
        self.epochs = Epochs(self.decider, self.evaluations)
        self._first = inputs.Resumed(found.rolled_back, found.expected)

    def open(self) -> None:
        """Write the log's first entry, or that the job goes on."""
        if isinstance(self._first, inputs.Opened):
            self.agreement.advise()
        self.decider.input(self._first)

    def stop(self, reason: str, *, success: bool, cause: str) -> None:
        """Stop the job, which saves first what the servers hold if it fails."""
        if not success:
            self.save()
        self.decider.input(inputs.Stopping(reason, success, cause))

    def save(self) -> None:
        """Order a checkpoint of the newest version, unless it is saved, or a server cannot give its part any more."""
        whole = self.host.state.failure is None and not any(each.failed for each in self.routes.followers)
        if self.decider.checkpoints is not None and whole:
            self.decider.input(inputs.SaveAsked())

    def stopped(self) -> protocol.Stop | None:
        """Return the stop, once the job has stopped."""
        if self.decider.failure is not None:
            return self.routes.stop_notice(self.decider.failure.reason)
        stopped = self.decider.stopped
        if stopped is None:
            return None
        return protocol.Stop(stopped.reason, stopped.version, stopped.in_order, 0)

    # Members

    def require_member(self, worker: str, incarnation: int, session: str) -> None:
        """Raise Refused unless that process is this incarnation of the worker."""
        refusal = self.coordinator.unknown_session(worker, incarnation, session)
        if refusal is not None:
            raise precondition(refusal)

    def attach(self, worker: str, incarnation: int, session: str, cut: Callable[[], object]) -> Outbox:
        """Open a session stream; it replaces an older one of the same process. `cut` ends it.

        Raises Refused for any other process, with nothing changed.
        """
        self.require_member(worker, incarnation, session)
        outbox = Outbox(self.host.runtime.loop, session, cut)
        self.routes.outboxes.open(worker, incarnation, outbox)
        self.decider.step(lambda: self.decider.give(inputs.Connected(worker, incarnation, session)))
        if self.decider.failure is not None:
            outbox.put(self.routes.stop_notice(self.decider.failure.reason))
        self.decider.execute()
        return outbox

    def detach(self, worker: str, incarnation: int, outbox: Outbox) -> None:
        """Close the stream of `outbox`. A newer stream of the same worker is left alone."""
        if self.routes.outboxes.close(worker, incarnation, outbox):
            self.decider.step(lambda: self.decider.give(inputs.Disconnected(worker, incarnation)))
        outbox.end()
        self.decider.execute()

    # Work

    def tell_extent(self, worker: str, incarnation: int, extent: Extent) -> None:
        """Record how much data a member has."""
        if self.coordinator.state.roster.member(worker, incarnation) is not None:
            self.decider.give(inputs.DataSized(worker, extent))

    def tell_carriers(self, worker: str, incarnation: int, carriers: Sequence[str]) -> None:
        """Record how a member's payloads travel to each server."""
        if self.coordinator.state.roster.member(worker, incarnation) is not None:
            self.carriers[worker] = carriers[: self.terms.servers]

    # Time and the outside world

    def change_policy(self, name: str, knobs: str, by: str, why: str, rate: float | None) -> str:
        """Have another policy decide, with its knobs as JSON. Returns what happens then; raises PolicyError."""
        try:
            given = json.loads(knobs or "{}")
        except (ValueError, RecursionError) as error:
            raise PolicyError(
                f"knobs of policy {name}: expected a JSON object, got {knobs[:80]!r}"
            ) from error
        if not isinstance(given, dict):
            raise PolicyError(f"knobs of policy {name}: expected a JSON object, got {knobs[:80]!r}")
        agreement, terms = self.agreement, self.agreement.terms
        policy = successor(self.coordinator.policy, name, given, terms.workers, terms.servers)
        if agreement.codec is not None:
            check_codec(agreement.codec, policy, agreement.optimizer)
        refused = declined(self.decider.input(inputs.ChangeAsked(policy.name, given, by, why, rate)))
        if refused is not None:
            raise PolicyError(refused.reason)
        return self.coordinator.change or f"policy {policy.name} decides from now on"

    def give_up(self, worker: str, reason: str) -> None:
        """Remove a worker that is present but does not take part: it leaves, for this reason."""
        member = self.coordinator.state.roster.present.get(worker)
        if member is not None:
            leave = inputs.Requested(worker, member.incarnation, protocol.Leave(reason))
            self.decider.input(leave)

    @property
    def seconds_to_timer(self) -> float:
        """Seconds until a timer of the policy is due; infinite if none is set."""
        due = self.coordinator.due
        return math.inf if due is None else max(0.0, due - self.decider.now())

    def tick(self) -> None:
        self.servers.tick()
        if self.coordinator.abandoned(self.decider.now()):
            self.save()
        self.decider.input(inputs.Tick())
        self.progress.look(self.coordinator, self.decider.now())
        present = self.coordinator.state.roster.present.values()
        self.routes.outboxes.end_others({(m.worker, m.incarnation) for m in present})
        self.joining.names.keep(self.coordinator.state.roster.present)
        self._reserve_rows()

    def _reserve_rows(self) -> None:
        """Keep room on the disk for the rows that tables have by now."""
        shard = self.host.state.shard
        if shard is None or not shard.tables:
            return
        dims = {table.spec.name: table.spec.dim for table in shard.tables.tables}
        rows = [(table.spec.name, table.count) for table in shard.tables.tables]
        for follower in self.routes.followers:
            rows += [(table.name, table.rows) for table in follower.memory.tables]
        try:
            self.routes.run_log.reserve_rows(sum(count * (8 + 4 * dims[name]) for name, count in rows))
        except LogError as error:
            fields = event("no_room_for_weights")
            log.warning("%s; the final weights may have to go elsewhere", error, extra=fields)

    # What is asked of it

    def report(self) -> JobReport:
        """Return the job's status."""
        now = self.decider.now()
        found = _with_wait(report(self.coordinator, now), self.epochs.awaited(now), now)
        return _with_wait(found, self.awaited or self.servers.silent, self.host.runtime.now())


def _with_wait(found: JobReport, awaited: Wait | None, now: float) -> JobReport:
    """Add what else is waited for to the report's note. `now`: by the clock of the wait."""
    if awaited is None:
        return found
    what, since, limit = awaited
    waited = now - since
    most = "" if math.isinf(limit) else f", at most {round(limit, 1):g} s"
    sentence = f"waiting for {what} (since {waited:.1f} s{most})"
    return replace(found, note="; ".join(filter(None, (found.note, sentence))))
