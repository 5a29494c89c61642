"""The job on one server: a primary takes inputs and payloads, a follower takes again what the primary took."""

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from psserver.coordinator import CoordinatorState, JobTerms
from psserver.coordinator.state import agreement
from psserver.optimizers import build as build_optimizer
from psserver.receipts import new_secret
from psserver.replication import Config
from psserver.replication.messages import Broke, Installed
from psserver.service.errors import Refused
from psserver.service.job.job import Job
from psserver.service.job.joining import JobModel
from psserver.service.job.run_log import RunLog
from psserver.service.life.settings import ServerSettings
from psserver.service.net.loop import settle
from psserver.service.replicas import inputs, payloads
from psserver.service.replicas.bodies import LARGE, Body
from psserver.service.replicas.comparing import Comparing
from psserver.service.replicas.deciding import ReplicatedDecider
from psserver.service.replicas.giving import Giving
from psserver.service.replicas.learning import Arrival, pending_of, take_up
from psserver.service.replicas.log import FollowersLog
from psserver.service.replicas.same import OWN, check_folder, check_same, described, mark_folder, named
from psserver.service.replicas.shell import Shell
from psserver.service.replicas.transfer import CopyError
from psserver.service.store.checkpoints import Checkpoints
from psserver.service.store.resume_point import ResumePoint
from psserver.shard import Shard
from pswire.logs.events import event
from pswire.messages import specs_from_wire
from pswire.model.plan import Plan, make_plan
from pswire.model.tables import tables_from_text
from pswire.transport.wire import deltas_numbered
from pswire.v1 import shard_pb2

log = logging.getLogger("ps-server")

# The first byte of an item: the job's beginning, inputs, or a payload.
_BEGINNING, _INPUTS, _PAYLOAD = b"b", b"i", b"p"
#: Seconds that the shard may take to execute what a payload waits for.
PATIENCE: Final = 3600.0


class Copy:
    """What the log of the job is for, on a server that has a copy. The loop's thread owns it.

    `job`: None before the log has begun, or a copy has come. `leads`: whether this server takes inputs. `epoch`: in
    which it does. `changed`: called when it leads, or leads no more; `deposed`: in which epoch another server began to
    lead; `outdated`: why what this server has counts no more, so that it begins again with a copy. `comparing`: its
    versions with the other copy's. `generation`: how often all servers began anew.
    """

    def __init__(
        self,
        settings: ServerSettings,
        host: payloads.ReplicatedHost,
        shell: Shell,
        changed: Callable[[], object],
        announce: Callable[[Plan], None],
        generation: int = 0,
    ) -> None:
        self._settings, self._host, self._shell = settings, host, shell
        self._changed, self._announce = changed, announce
        self.job: Job | None = None
        self.leads, self.epoch, self.deposed = False, 0, 0
        self.outdated = ""
        # How often this server took the place of another one.
        self.takeovers = 0
        self.failure: Exception | None = None
        # How many items are executed here, and how many may be.
        self._executed = self._upto = 0
        # A primary's: what to do with each item once it is stable, from number `_executed` on; and who waits.
        self._held: deque[Callable[[], None]] = deque()
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._activated: Config | None = None
        self._more = asyncio.Event()
        self._decider: ReplicatedDecider | None = None
        self._generation = generation
        # Entries that order a checkpoint which this server saves.
        self._to_save: set[int] = set()
        host.orders.save = self._save_part
        self._arrival = Arrival(host.memory.ledger)
        self._giving = Giving(shell.links.links, described(settings), lambda to: shell.give(Broke(to)))
        self.comparing = Comparing(host, shell)
        host.stable = self.stable
        host.pushes = payloads.ForwardedPushes(host, lambda: self.leads, self._forward)

    # Leading

    def begin(self, terms: JobTerms, run_log: RunLog, found: ResumePoint | None = None) -> None:
        """Make the job, as the first primary; its `open` comes next. `found`: from which checkpoint. Raises
        CheckpointError, LogError."""
        settings, secret, began = replace(self._settings, terms=terms), new_secret(), time.monotonic()
        job = self._make(settings, run_log, secret, began)
        if found is not None:
            if found.checkpoint is not None:
                job.go_on(found.checkpoint, found)
            # From here on nothing refuses the run.
            found.cut()
            run_log.open()
        assert settings.out is not None
        mark_folder(settings.out, terms.job)
        beginning = {**named(job), "settings": described(settings)}
        self._leads()
        assert self._decider is not None
        self._decider.begin()
        self._offer(_BEGINNING + json.dumps(beginning).encode(), lambda: None)

    def _leads(self) -> None:
        self.leads, self.epoch = True, self._shell.replica.disk.config.epoch
        self._host.orders.unread_goes = False

    def _offer(self, body: Body, release: Callable[[], None]) -> None:
        self._held.append(release)
        self._shell.offer(body)

    def _forward(self, parts: list[Body]) -> None:
        self._offer(self._shell.bodies.make([_PAYLOAD, *parts]), lambda: None)

    async def stable(self) -> None:
        """Wait until the copies hold everything that was taken so far."""
        if self._held:
            future = self._host.owner.loop.create_future()
            self._waiting.append((self._executed + len(self._held), future))
            await future

    # The log

    def execute(self, upto: int) -> None:
        """Execute the first `upto` items of the log."""
        self._upto = upto
        if not self.leads:
            self._more.set()
            return
        while self._executed < self._upto:
            self._executed += 1
            self._held.popleft()()
        self._shell.executed(self._executed)
        while self._waiting and self._waiting[0][0] <= self._executed:
            settle(self._waiting.popleft()[1])
        self._attempt()

    def activated(self, config: Config) -> None:
        """This server is the primary of an epoch, once it has executed what the log has."""
        self.comparing.activated(config)
        if self.leads:
            self.epoch = config.epoch
            # Learners are welcomed anew in each epoch, and get their copy then.
            self._giving.stop_all()
            return
        self._activated = config
        self._more.set()

    def stepped_down(self, epoch: int) -> None:
        """Lead no more in that epoch; perhaps in a later one."""
        self.look()

    def look(self) -> None:
        """Notice that another server leads. What was taken here and is not stable is void, and so is this copy."""
        replica = self._shell.replica
        if self.leads and replica.disk.config.primary != replica.server and not self.deposed:
            self.deposed = replica.disk.config.epoch
            self._changed()

    def give_copy(self, to: int) -> None:
        """Give a learner a copy, as soon as everything that is decided here is stable."""
        self._giving.want(to)
        self._attempt()

    def broke(self, server: int) -> None:
        """A stream from or to a server broke, or it is silent."""
        self._giving.stop(server)

    def _attempt(self) -> None:
        # An entry that is deferred is nowhere but here.
        if self.leads and self.job is not None and not (self._held or self.job.decider.defers):
            self._giving.attempt(self.job, self._executed, self.epoch)

    def reset(self) -> None:
        """This copy differs from the primary's."""
        self._begin_again("this copy is not the primary's equal")

    def fail(self, error: Exception) -> None:
        """Take no further part."""
        self.failure = self.failure or error
        self._changed()

    def _begin_again(self, why: str) -> None:
        self.outdated = self.outdated or why
        self._changed()

    # Learning

    def arrives(self, sender: int, piece: shard_pb2.CopyPiece) -> None:
        """Take a piece of a copy, if this server needs one. Raises Refused for a piece that does not follow."""
        replica = self._shell.replica
        needed = not self.leads and not replica.in_sync(replica.disk.config) and piece.at > replica.log.stable
        # Nobody is watched before all were met.
        primary = self._shell.watch.primary if self._shell.formed else replica.disk.config.primary
        follows = sender == primary and piece.epoch == replica.synced
        if not needed or not follows:
            return
        if self._arrival.here and piece.at <= self._arrival.at:
            return
        # The primary makes another copy only if it has forgotten what follows on the one before.
        if self._arrival.here or self.job is not None:
            self._begin_again("this copy was left out, and its primary has forgotten what it lacks")
            return
        try:
            self._arrival.take(piece)
        except CopyError as error:
            self.fail(error)
        if self._arrival.here:
            self._more.set()

    async def _learn(self) -> None:
        """Take up the copy that is here."""
        whole = await self._host.heavy.on_pool(self._arrival.read)
        about = whole.about
        state = CoordinatorState.from_json(about["coordinator"])
        agreement.check(state)
        self._begin_following(about, self._new_log(state.entries, state.version, pending_of(about)))
        assert self.job is not None
        await take_up(whole, state, self.job, self._configure)
        self._arrival.end()
        self.comparing.begin(state.version)
        self._executed = self._upto = whole.at
        fields = event("copy_taken", version=state.version)
        log.info("has a copy of version %d, and follows from there", state.version, extra=fields)
        self._shell.give(Installed(whole.at))

    # Following

    async def follow(self) -> None:
        """Execute items that another server took, until this one leads."""
        try:
            while not self.leads:
                await self._more.wait()
                self._more.clear()
                if self._arrival.here:
                    await self._learn()
                while self._executed < self._upto:
                    held = self._shell.replica.log
                    body = self._shell.bodies[held.tail[self._executed - held.first]]
                    await self._take_again(body)
                    if len(body) >= LARGE:
                        # A learner takes many of them in a row.
                        await asyncio.sleep(0)
                    self._executed += 1
                    self._shell.executed(self._executed)
                if self._activated is not None:
                    self._succeed(self._activated)
        except Exception as error:
            log.exception("this copy cannot go on", extra=event("replica_failed"))
            self.fail(error)

    async def _take_again(self, body: Body) -> None:
        kind, rest = bytes(body[:1]), memoryview(body)[1:]
        if kind == _BEGINNING:
            self._follow_beginning(bytes(rest))
            return
        job, decider = self.job, self._decider
        assert job is not None and decider is not None, "the log begins with the job"
        if kind == _PAYLOAD:
            # A payload needs its ticket.
            if not await self._host.execute(job.routes.sent, PATIENCE) or self._host.state.failure:
                raise RuntimeError(self._host.state.failure or "the shard does not execute the log")
            assert self._host.state.shard is not None
            payloads.stage(self._host.state.shard, rest)
        else:
            decider.take_again(*inputs.decode(bytes(rest)), self._configure)
            if decider.failure is not None:
                raise RuntimeError(decider.failure.reason)

    def _follow_beginning(self, data: bytes) -> None:
        self._begin_following(json.loads(data), self._new_log())

    def _new_log(self, *before: Any) -> FollowersLog:
        """Return the log of a copy; `before`: what it had then."""
        if self._settings.metrics_port is None:
            return FollowersLog(self._settings.rescue, *before)
        from psserver.metrics.copies import CountedFollowersLog

        return CountedFollowersLog(self._settings.rescue, *before)

    def _begin_following(self, about: Mapping[str, Any], run_log: FollowersLog) -> None:
        """Make the job that another server leads. Raises OtherSettingsError."""
        check_same(self._settings, about["settings"])
        assert self._settings.out is not None
        check_folder(self._settings.out, about["job"])
        own = {name: about[name] for name in OWN}
        settings = replace(self._settings, terms=replace(self._settings.terms, **own))
        self._make(settings, run_log, bytes.fromhex(about["secret"]), about["began"])
        self._host.orders.unread_goes = True

    def _configure(self, message: shard_pb2.Configure) -> None:
        job = self.job
        assert job is not None
        plan = make_plan(specs_from_wire(message.variables), 1, tables_from_text(message.tables))
        optimizer = build_optimizer(json.loads(message.optimizer))
        known = job.agreement
        try:
            JobModel(job.decider, self._announce).hold(plan, optimizer, deltas_numbered(message.deltas))
        except Refused as refused:
            raise RuntimeError(refused.message) from refused
        known.plan, known.optimizer = plan, optimizer
        job.decider.assurance.optimizer = optimizer

    def _succeed(self, config: Config) -> None:
        """Lead: everything that the former primary may have let go is executed here."""
        job, out = self.job, self._settings.out
        self._activated = None
        if job is None:
            raise RuntimeError("the first primary was lost before the job began")
        run_log = job.routes.run_log
        if isinstance(run_log, FollowersLog) and out is not None:
            # Epochs of another generation are other epochs.
            generation = f"generation-{self._generation}-" if self._generation else ""
            run_log.succeed(out, f"{generation}epoch-{config.epoch}")
        assert self._decider is not None
        self._leads()
        self.takeovers += 1
        self._decider.lead()
        self._changed()

    def _make(self, settings: ServerSettings, run_log: RunLog, secret: bytes, began: float) -> Job:
        deciding = partial(
            ReplicatedDecider, began=began, hold=self._hold, stable=self.stable, saves=self._saves
        )
        job = self.job = Job(
            settings.terms,
            settings.policy,
            settings.optimizer,
            self._host,
            run_log,
            self._announce,
            self._changed,
            settings.log_flush,
            settings.security,
            deciding,
        )
        assert isinstance(job.decider, ReplicatedDecider)
        self._decider = job.decider
        self._decider.decided, self._decider.made = self.comparing.decided, self.comparing.made
        self._host.open(settings.terms.job, secret)
        store, out = self._host.saver.store, settings.out
        if store is not None and out is not None and settings.keep:
            # Nothing is rolled back any more, so what is there belongs to the log.
            job.decider.checkpoints = Checkpoints(out, store, settings.keep, self._host, run_log, [], None)
        return job

    def _saves(self, entry: int) -> bool:
        """Decide whether this server saves the checkpoint that an entry orders: the follower does, so that the primary
        has no pause, or the primary if it is alone."""
        alone = len(self._shell.replica.disk.config.members) == 1
        saves = alone or not self.leads
        if saves:
            self._to_save.add(entry)
        return saves

    def _save_part(self, entry: int, shard: Shard) -> bool:
        if entry not in self._to_save:
            self._host.saver.passes()
            return False
        self._to_save.discard(entry)
        return self._host.saver.save(entry, self._host.job, shard)

    async def finish_saving(self) -> None:
        """Wait for the checkpoint that is being written here, unless this copy is void."""
        void = self.deposed or self.outdated or self.failure
        if not void and self.job is not None and self.job.decider.checkpoints is not None:
            await self.job.decider.checkpoints.finish()

    def _hold(self, calls: bytes, release: Callable[[], None]) -> None:
        self._offer(_INPUTS + calls, release)
