"""The job on one server: the coordinator with part 0, and the streams of decisions to the other parts."""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from psserver import receipts
from psserver.coordinator import JobState, JobTerms
from psserver.optimizers import build as build_optimizer
from psserver.replication import Config, SyncMember
from psserver.service.errors import RequestRefused
from psserver.service.job.agreement import Agreement
from psserver.service.job.job import ServedJob
from psserver.service.job.joining import JobModel
from psserver.service.job.run_log import RunLog
from psserver.service.life.settings import ServerSettings
from psserver.service.replicas import inputs, payloads
from psserver.service.replicas.bodies import Body
from psserver.service.replicas.deciding import ReplicatedDecider
from psserver.service.replicas.followers import PartFollower
from psserver.service.replicas.giving import Given
from psserver.service.replicas.holding import PAYLOAD, Holding
from psserver.service.replicas.job_state import about_job, pending_of, take_up
from psserver.service.replicas.log import FollowersLog
from psserver.service.replicas.same import OWN, check_folder, check_same, described, mark_folder, named
from psserver.service.replicas.saving import named as named_saver
from psserver.service.replicas.saving import saver_of
from psserver.service.replicas.shell import Shell
from psserver.service.replicas.transfer import WholeCopy
from psserver.service.store.checkpoints import Checkpoints
from psserver.service.store.resume_point import ResumePoint
from pswire.addresses import Address
from pswire.logs.events import event
from pswire.messages import specs_from_wire
from pswire.model.plan import Plan, make_plan
from pswire.model.tables import tables_from_text
from pswire.transport.wire import deltas_numbered
from pswire.v1 import shard_pb2

log = logging.getLogger("ps-server")

# The first byte of an item: the job's beginning, or inputs behind the number of the server that saves part 0 where they
# lead to a checkpoint. Others are payloads.
_BEGINNING, _INPUTS = b"b", b"i"
#: Least seconds that a part may be without a server that serves it.
LEAST_PATIENCE: Final = 60.0
#: Seconds that the shard may take to execute what a payload waits for.
PATIENCE: Final = 3600.0


class LogCopy(Holding):
    """The server's side of the job's log, on a server that has a copy. The loop's thread owns it.

    `job`: None before the log has begun, or a copy has come. `generation`: how often all servers began anew. `where`:
    returns the address of the server that serves a part, if it is known.
    """

    def __init__(
        self,
        settings: ServerSettings,
        host: payloads.ReplicatedHost,
        shell: Shell,
        changed: Callable[[], object],
        announce: Callable[[Plan], None],
        generation: int = 0,
        where: Callable[[int], tuple[int, Address] | None] = lambda part: None,
    ) -> None:
        super().__init__(host, shell, changed, described(settings))
        self._settings, self._announce = settings, announce
        self._generation, self._where = generation, where
        self.job: ServedJob | None = None
        self._decider: ReplicatedDecider | None = None
        # Who saves what the item orders that is executed now: as the primary chose, or as the item says.
        self._saver: SyncMember | int = shell.replica.server

    @property
    def _begun(self) -> bool:
        return self.job is not None

    # Leading

    def begin(self, terms: JobTerms, run_log: RunLog, found: ResumePoint | None = None) -> None:
        """Make the job, as the first primary; its `open` comes next. `found`: from which checkpoint. Raises
        CheckpointError, LogError."""
        settings = replace(self._settings, terms=terms)
        job = self._make(settings, run_log, receipts.new_secret())
        if found is not None:
            if found.checkpoint is not None:
                job.go_on(found.checkpoint, found)
            # From here on nothing refuses the run.
            found.cut()
            run_log.open()
        assert settings.out is not None
        mark_folder(settings.out, terms.job)
        beginning = {**named(job), "settings": described(settings)}
        self._lead()
        assert self._decider is not None
        self._decider.begin()
        self._offer(_BEGINNING + json.dumps(beginning).encode())

    def _to_give(self) -> Given | None:
        job, decider = self.job, self._decider
        if job is None or decider is None:
            return None
        # Notes: it is in the middle of something.
        if not decider.routes.sent or decider.busy:
            return None
        # A copy has no earlier lines of the log: who goes on with it needs them in the file.
        run_log = decider.routes.run_log
        decider.write_or_fail(run_log.flush)
        if decider.failure is not None:
            return None
        return Given(job.host, decider.routes.sent, lambda: about_job(job, decider), run_log.sync_flushed)

    # Following

    async def _take_up(self, whole: WholeCopy) -> int:
        about = whole.about
        state = JobState.read(about["coordinator"])
        self._begin_following(about, self._new_log(state.entries, state.version, pending_of(about)))
        assert self.job is not None
        await take_up(whole, state, self.job, self._configure)
        return state.version

    async def _take_again(self, body: Body) -> None:
        kind, rest = bytes(body[:1]), memoryview(body)[1:]
        if kind == _BEGINNING:
            self._follow_beginning(bytes(rest))
            return
        job, decider = self.job, self._decider
        assert job is not None and decider is not None, "the log begins with the job"
        if kind == PAYLOAD:
            # A payload needs its ticket.
            if not await self._host.execute(job.routes.sent, PATIENCE) or self._host.state.failure:
                raise RuntimeError(self._host.state.failure or "the shard does not execute the log")
            assert self._host.state.shard is not None
            payloads.stage(self._host.state.shard, rest)
        else:
            self._saver, noted = saver_of(rest)
            decider.take_again(*inputs.decode(bytes(noted)), self._configure)
            await self._host.state.wait_ready()
            if decider.failure is not None:
                raise RuntimeError(decider.failure.reason)

    def _follow_beginning(self, data: bytes) -> None:
        self._begin_following(json.loads(data), self._new_log())

    def _new_log(self, *before: Any) -> FollowersLog:
        """Return the log of a copy; `before`: what it had then."""
        found = FollowersLog(self._settings.rescue, *before)
        if self._settings.metrics_port is not None:
            from psserver.metrics.counts import Counts

            found.counts = Counts()
        return found

    def _begin_following(self, about: Mapping[str, Any], run_log: FollowersLog) -> None:
        """Make the job that another server leads. Raises OtherSettingsError."""
        check_same(self._settings, about["settings"])
        assert self._settings.out is not None
        check_folder(self._settings.out, about["job"])
        own = {name: about[name] for name in OWN}
        settings = replace(self._settings, terms=replace(self._settings.terms, **own))
        self._make(settings, run_log, bytes.fromhex(about["secret"]))
        self._host.orders.unread_goes = True

    def _configure(self, message: shard_pb2.Configure) -> None:
        job = self.job
        assert job is not None
        parts, tables = self._settings.terms.servers, tables_from_text(message.tables)
        plan = make_plan(specs_from_wire(message.variables), parts, tables)
        optimizer = build_optimizer(json.loads(message.optimizer))
        known = job.agreement
        try:
            JobModel(job.decider, self._announce).hold(plan, optimizer, deltas_numbered(message.deltas))
        except RequestRefused as refused:
            raise RuntimeError(refused.message) from refused
        known.plan, known.optimizer = plan, optimizer

    def _succeed(self, config: Config) -> None:
        job, out = self.job, self._settings.out
        if job is None:
            raise RuntimeError("the first primary was lost before the job began")
        run_log = job.routes.run_log
        if isinstance(run_log, FollowersLog) and out is not None:
            # Epochs of another generation are other epochs.
            generation = f"generation-{self._generation}-" if self._generation else ""
            run_log.succeed(out, f"{generation}epoch-{config.epoch}")
        assert self._decider is not None
        self._lead()
        self.takeovers += 1
        self._decider.lead()
        if job.decider.checkpoints is not None:
            job.decider.checkpoints.succeed(self._decider.coordinator.state.saved_version)
        self._changed()

    def _make(self, settings: ServerSettings, run_log: RunLog, secret: bytes) -> ServedJob:
        self._decider = ReplicatedDecider(
            Agreement(settings.terms, settings.policy, settings.optimizer),
            self._host,
            run_log,
            settings.log_to_disk,
            self._changed,
            hold=self._hold,
            copied=lambda: len(self._shell.replica.disk.config.members) > 1,
            stable=self.stable,
            saves=self._saves,
        )
        job = self.job = ServedJob(self._decider, self._announce, settings.security)
        self._decider.decided, self._decider.made = self.comparing.decided, self.comparing.made
        self._host.open(settings.terms.job, secret)
        job.routes.followers += self._followers(job, secret)
        store, out = self._host.saver.store, settings.out
        if store is not None and out is not None and settings.keep:
            # Nothing is rolled back any more, so what is there belongs to the log.
            followers = job.routes.followers
            job.decider.checkpoints = Checkpoints(
                job.agreement,
                out,
                store,
                settings.keep,
                self._host,
                run_log,
                followers,
                None,
                job.decider.unsaved,
            )
        return job

    def _followers(self, job: ServedJob, secret: bytes) -> list[PartFollower]:
        """Return the streams to the other parts, which begin when this server leads."""
        settings, decider, parts = self._settings, job.decider, job.terms.servers
        assert isinstance(decider, ReplicatedDecider)

        def opening(part: int) -> shard_pb2.Open:
            name, epoch = job.terms.job, self.epoch
            return shard_pb2.Open(
                job=name,
                task_index=part,
                servers=parts,
                secret=secret,
                leads_in=epoch,
            )

        def lost(part: int, cause: str, reason: str) -> None:
            log.error("%s", reason, extra=event("server_lost", server=part))
            job.stop(reason, success=False, cause=cause)

        told = (lost, decider.executed)
        timeout, patience = settings.terms.worker_timeout, max(settings.terms.idle_timeout, LEAST_PATIENCE)
        return [
            PartFollower(
                part, self._where, opening, timeout, self._host.runtime, patience, settings.credentials, *told
            )
            for part in range(1, parts)
        ]

    def _saves(self, entry: int) -> None:
        """Note that the item that is executed now orders a checkpoint."""
        if isinstance(self._saver, int):
            self._saving.follow(self._saver, [entry])
        else:
            self._saving.lead(self._saver, [entry])

    async def finish_saving(self) -> None:
        if not self.leads:
            await super().finish_saving()
        elif self.job is not None and self.job.decider.checkpoints is not None and not self.deposed:
            await self.job.decider.checkpoints.finish()

    def _hold(self, calls: bytes, release: Callable[[], None]) -> None:
        saver = self._saving.choose()

        def released() -> None:
            self._saver = saver
            release()

        self._offer(_INPUTS + named_saver(saver) + calls, released)
        if not self._waiting:
            # Nothing is under way whose end others could wait for together with this.
            self._shell.links.flush()
