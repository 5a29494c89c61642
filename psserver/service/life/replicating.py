"""A server of a job with replicas: it leads, follows, or votes, until the job is over."""

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from psserver.replication.messages import Item, Message
from psserver.service.errors import unavailable
from psserver.service.job.job import ServedJob
from psserver.service.job.log_file import LogError
from psserver.service.life.coordinating import lock_folder, resume_point, run_log_of
from psserver.service.life.end import LEAST_PATIENCE, JobEnd
from psserver.service.life.job_loop import Continuation, JobLoop
from psserver.service.life.results import Results, say_how_to_go_on
from psserver.service.life.settings import Announce, ServerSettings
from psserver.service.net.commits import Commits
from psserver.service.net.coordinator import CoordinatorRpc
from psserver.service.net.exchange import ExchangeRpc
from psserver.service.replicas.bodies import Bodies, Body
from psserver.service.replicas.copy import LogCopy
from psserver.service.replicas.disk import Promises
from psserver.service.replicas.links import Links, LogListener
from psserver.service.replicas.log import fence
from psserver.service.replicas.logs import Logs
from psserver.service.replicas.overview import Overview
from psserver.service.replicas.part import PartCopy, PartFollowRpc
from psserver.service.replicas.payloads import ReplicatedHost
from psserver.service.replicas.shell import LOOK
from psserver.service.store.resume_point import name_job
from pswire.exits import ExitCode
from pswire.logs.events import event
from pswire.model.plan import Plan
from pswire.transport.leader import NOT_LEADING
from pswire.v1 import shard_pb2

log = logging.getLogger("ps-server")

# Share of the memory limit that items may take which a copy has not executed yet.
LOG_SHARE: Final = 0.125
# Seconds between two warnings of servers not yet there.
WARN_EVERY: Final = 10.0


class Replicating:
    """The role of each server of a job with replicas. `rpc`: what workers and observers call; `links`: the method
    Replicate; `numbers`: for metrics. The loop's thread owns it."""

    def __init__(
        self,
        settings: ServerSettings,
        host: ReplicatedHost,
        continuation: Continuation,
        announce: Announce,
        exchange: ExchangeRpc,
    ) -> None:
        """Prepare the server, and its copy of the log. Raises FolderError, LogError, CheckpointError, RewindError."""
        assert settings.out is not None
        self._settings, self._host, self._announce = settings, host, announce
        self._continuation, self._exchange = continuation, exchange
        exchange.elsewhere = unavailable(NOT_LEADING)
        # Why this server ends; and whether it has ended the job.
        self._reason, self._concluded = "", False
        index, out = settings.task_index, settings.out
        listener = LogListener(
            self._receive,
            self._hold,
            self._broke,
            self._ends,
            self._arrives,
            lambda sender, digest: self._copy.comparing.theirs(sender, digest),
            self._alive,
            lambda sender, saved: self._copy.hear_saved(sender, saved),
            lambda sender, epoch: self._logs.unreached(sender, epoch),
        )
        self._promises = promises = Promises(out, index)
        self._logs = logs = Logs(
            index, len(continuation.hosts), settings.terms.servers, promises, settings.resume
        )
        self._lock = lock_folder(settings, host.runtime.disk()) if logs.anew and index == 0 else None
        promises.hold()
        # What others do is not known before all have met in the new generation. Until then this server writes nothing
        # and hears nobody, so that one which is started so by mistake harms neither the job nor itself.
        self._waits = logs.anew and settings.resume is not None
        if not self._waits:
            logs.persist()
        bodies = Bodies(host.sharing)
        self.links = Links(
            index,
            continuation.hosts,
            listener,
            logs.generation,
            bodies,
            None if settings.host.transport == "grpc" else exchange.sockets,
        )
        logs.open(self.links, bodies, room := int(LOG_SHARE * host.memory.limit))
        self._shell = logs.own
        # Nothing is held yet, so there is room.
        host.memory.take(room)
        given, wake = (settings, host, self._shell), continuation.wake.set
        # The copy here: of part 0, with the coordinator, or of another part.
        self._copy: LogCopy | PartCopy
        if self._shell.part:
            self._copy = PartCopy(*given, wake)
        else:
            self._copy = LogCopy(*given, wake, self._planned, logs.generation, logs.serves)
        self._shell.machine = self._copy
        self.follow = PartFollowRpc(self._copy if isinstance(self._copy, PartCopy) else None)
        logs.vote(self._copy.fail)
        if not self._waits:
            self._begin()
        self._end = JobEnd(settings, host, continuation, self._copy, logs, promises, self.links)
        self._overview = Overview(host, logs, self._copy)
        self.numbers = self._overview.numbers
        own, place = continuation.hosts[index], str(settings.out.absolute()) if settings.out else ""
        self.rpc = CoordinatorRpc(own, settings.security, place, self._overview)

    def _begin(self) -> None:
        """Serve the part of which this server is the first primary; with part 0, make the job, from the checkpoint that
        was asked for. Raises LogError, CheckpointError, RewindError."""
        copy = self._copy
        if not self._shell.replica.leads:
            return
        if isinstance(copy, PartCopy):
            copy.begin()
            return
        settings = replace(self._settings, terms=name_job(self._settings, self._host.runtime.disk()))
        assert settings.out is not None
        found = resume_point(settings, self._announce, self._host.runtime.disk())
        mark = None if found is None else found.mark
        copy.begin(
            settings.terms,
            run_log_of(settings, mark, fence(settings.out), self._host.runtime.disk(0o644)),
            found,
        )

    async def _meet(self) -> None:
        """Wait for all servers of a new generation, and begin it. Raises as `_begin`."""
        while self._waits and self._end.found() is None:
            if self.links.met.issuperset(self.links.links):
                self._waits = False
                self._logs.persist()
                self._begin()
                if self.job is not None:
                    self.job.open()
            elif self.links.met:
                self._end.hear()
            await asyncio.sleep(LOOK)

    def _alive(self, sender: int, leads: bool) -> None:
        self._logs.alive(sender, self._host.runtime.now(), leads=leads)

    @property
    def job(self) -> ServedJob | None:
        """The job, if this server leads it."""
        return self._copy.job if isinstance(self._copy, LogCopy) and self._copy.leads else None

    async def run(self) -> ExitCode:
        """Run until the job is over, another server has taken this one's place, or a signal comes."""
        settings = self._settings
        self.links.start(settings.terms.worker_timeout, settings.credentials)
        tasks = [asyncio.create_task(self._pass_time())]
        if self._shell.replica.holds:
            tasks.append(asyncio.create_task(self._copy.follow()))
        # The job's, from its last primary to all others.
        last: ExitCode | None = None
        try:
            code = await self._follow()
            if code is None:
                code = await self._lead()
                last = code if self._concluded else None
            await self._vote_for_successor()
            return code
        finally:
            for task in tasks:
                task.cancel()
            if last is not None:
                # A server that has just come back may not know yet who leads, and believes no other.
                self._logs.beat()
            await self.links.close(last, self._reason)
            self._promises.close()
            if self._lock is not None:
                self._lock.close()

    # Following and voting

    async def _follow(self) -> ExitCode | None:
        """Wait for the end, or until this server leads: then return None."""
        going, copy = self._continuation, self._copy
        await self._meet()
        while self.job is None:
            if going.signal is not None:
                await self._wait_for_the_end()
            found = self._end.found()
            if found is not None:
                await copy.finish_saving()
                return self._stopped(*found)
            if copy.outdated or self._end.lost is not None:
                # The next server of this process begins without a copy, and gets one, or goes on from a checkpoint.
                return self._begin_again(copy.outdated or self._end.loss)
            with suppress(TimeoutError):
                await asyncio.wait_for(going.wake.wait(), 1.0)
            going.wake.clear()
        return None

    def _begin_again(self, why: str) -> ExitCode:
        self._continuation.hosts = tuple(self.links.hosts)
        self._continuation.begin_again(why)
        return ExitCode.UNREACHABLE

    async def _wait_for_the_end(self) -> None:
        """Wait after a signal, which usually reaches all servers of a job: the primary needs this one until it has
        ended."""
        seconds = self._settings.terms.worker_timeout
        limit = self._host.runtime.now() + seconds
        fields = event("replica_ends", signal=self._continuation.signal, seconds=seconds)
        if self.links.met:
            log.info(
                "%s: waits up to %g s for the job to end", self._continuation.signal, seconds, extra=fields
            )
        while self._end.told is None and self._host.runtime.now() < limit and self._end.heard_lately:
            await asyncio.sleep(LOOK)

    async def _vote_for_successor(self) -> None:
        """Answer the server that takes this one's place, until it shows that it leads: of two servers it needs this
        one's vote, and an answer that a broken stream lost must be given again."""
        deposed, limit = self._copy.deposed, self._host.runtime.now() + LEAST_PATIENCE
        while deposed and not self._shell.watch.led_since(deposed) and self._host.runtime.now() < limit:
            if self._continuation.signal is not None or self._end.lost is not None:
                return
            await asyncio.sleep(LOOK)

    # Leading

    async def _lead(self) -> ExitCode:
        settings, going, job = self._settings, self._continuation, self.job
        assert job is not None
        for follower in job.routes.followers:
            follower.start()
        self._exchange.commits = Commits(job.decider, job.host)
        self.rpc.lead(job)
        # Whoever asks this one first finds another one that leads meanwhile.
        addresses = [going.hosts[settings.task_index], *(self.links.hosts[each] for each in self.links.links)]
        job.routes.run_log.write_address(",".join(map(str, addresses)), job.terms.job, settings.credentials)
        results = Results(job)
        life = JobLoop(
            job,
            going.wake,
            lambda: going.signal,
            lambda: bool(self._copy.deposed or self._copy.failure or self._end.goes_back),
        )
        try:
            return await self._led(job, life, results)
        finally:
            for follower in job.routes.followers:
                await follower.abandon()

    def _stop_serving(self) -> None:
        """Another server leads, or none does."""
        self.rpc.lead(None)
        self._exchange.commits = None

    async def _led(self, job: ServedJob, life: JobLoop, results: Results) -> ExitCode:
        """Let time pass for the job, and end it or leave it to another server."""
        going = self._continuation
        await life.watch(results)
        if self._copy.deposed:
            self._stop_serving()
            return self._stopped(
                ExitCode.REFUSED,
                f"server {self._shell.replica.disk.config.primary} has taken this server's place, in term "
                f"{self._copy.deposed}: nothing that this one took since counts, and nothing of it is lost",
            )
        if self._copy.failure is not None and (found := self._end.found()) is not None:
            self._stop_serving()
            return self._stopped(*found)
        if self._end.goes_back and job.decider.stopped is None:
            self._stop_serving()
            job.decider.write_or_fail(job.routes.run_log.close)
            return self._begin_again(self._end.loss)
        if job.decider.stopped is None and job.decider.failure is None:
            return self._stopped(
                ExitCode.UNREACHABLE,
                f"stopped by {going.signal} without a majority of the servers: the job has no end here",
            )
        return await self._conclude(job, results)

    async def _conclude(self, job: ServedJob, results: Results) -> ExitCode:
        """Write what is kept of a job that is over; return its exit code."""
        job.decider.write_or_fail(job.routes.run_log.flush)
        if job.decider.failure is not None and job.decider.failure.code == ExitCode.REFUSED:
            return self._stopped(ExitCode.REFUSED, job.decider.failure.reason)
        await self._copy.finish_saving()
        code = await results.conclude()
        say_how_to_go_on(self._settings.out, code, self._host.runtime.disk())
        if self._continuation.signal is None:
            await self.rpc.wait_for_log_readers()
        self._concluded, stopped = True, job.stopped()
        self._reason = "the job is over" if stopped is None else stopped.reason
        try:
            # For a server that comes too late to hear it.
            self._promises.write_end(self._logs.generation, code, self._reason)
        except LogError as error:
            log.error("%s", error, extra=event("run_folder_failed"))
        state = job.coordinator.state
        ended = {"version": state.version, "out": str(self._settings.out)}
        ended["kept_back"] = state.kept_back.sentence()
        return self._stopped(code, self._reason, ended)

    # All of them

    def _receive(self, sender: int, part: int, message: Message) -> None:
        if self._waits:
            return
        self._end.hear()
        self._logs.receive(sender, part, message)
        self._copy.look()

    def _broke(self, server: int) -> None:
        if not self._waits:
            self._logs.broke(server)

    def _hold(self, item: Item, body: Body) -> None:
        # Also before this server hears anybody: a stream carries each item once, and its message comes again.
        self._shell.hold(item, body)

    def _arrives(self, sender: int, piece: shard_pb2.CopyPiece) -> None:
        if not self._waits:
            self._copy.arrives(sender, piece)

    def _ends(self, sender: int, code: ExitCode, reason: str) -> None:
        # One that was replaced, and does not know it, says nothing about the job.
        if self.job is None and sender == self._logs.shells[0].watch.primary:
            self._end.told = code, reason
            self._continuation.wake.set()

    async def _pass_time(self) -> None:
        warn_at = self._host.runtime.now() + WARN_EVERY
        while True:
            try:
                if not self._waits:
                    self._logs.tick()
                    self._copy.look()
                    self._end.look_for_loss(self.job)
            except Exception as error:
                # A server for which no time passes would neither be heard nor take the place of another one.
                log.exception("this copy cannot go on", extra=event("replica_failed"))
                self._copy.fail(error)
                return
            if self._host.runtime.now() >= warn_at:
                warn_at = self._host.runtime.now() + WARN_EVERY
                self._warn_of_missing()
            await asyncio.sleep(LOOK)

    def _warn_of_missing(self) -> None:
        """Say which servers were never heard, while nothing can be decided without them."""
        missing = sorted(set(self.links.links) - self.links.met)
        if not missing or (self._logs.formed and self.links.met):
            return
        why = "this server has heard none of them" if self._logs.formed else "all servers must be here once"
        log.warning(
            "waiting for server %s: nothing is decided before, because %s",
            *(", ".join(map(str, missing)), why),
            extra=event("replicas_missing", servers=missing),
        )

    def _planned(self, plan: Plan) -> None:
        self._announce("plan", {"fingerprint": plan.fingerprint, "text": plan.describe()})

    def _stopped(self, code: ExitCode, reason: str, more: dict[str, Any] | None = None) -> ExitCode:
        self._reason = reason
        self._announce("stopped", {"reason": reason, "exit_code": int(code), **(more or {})})
        return code
