"""Server 0: makes the job, serves its workers, and runs it to its end."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from psserver.checkpoint import CheckpointError, FolderLock, Store
from psserver.checkpoint.disk import RealDisk
from psserver.checkpoint.fence import GENERATION
from psserver.checkpoint.resumption import AUTO
from psserver.checkpoint.rewind import Mark
from psserver.receipts import new_secret
from psserver.service.guard.machine import default_limit, most_workers
from psserver.service.job.agreement import Agreement
from psserver.service.job.decider import Decider
from psserver.service.job.follower import LOST, Follower
from psserver.service.job.job import ServedJob
from psserver.service.job.log_file import Check, Fence, LogError, always
from psserver.service.job.next_job import free
from psserver.service.job.run_log import DECISIONS, FolderError, RunLog, make_folder
from psserver.service.life.job_loop import Continuation, JobLoop
from psserver.service.life.listeners import Listeners
from psserver.service.life.results import Results, say_how_to_go_on
from psserver.service.life.settings import Announce, ServerSettings
from psserver.service.net.coordinator import CoordinatorRpc
from psserver.service.runtime import Runtime
from psserver.service.store.checkpoints import Checkpoints
from psserver.service.store.host import ShardHost
from psserver.service.store.resume_point import FOLDER as CHECKPOINTS
from psserver.service.store.resume_point import ResumePoint, find, name_job, succeeded
from psserver.shard import VersionMade
from pswire.addresses import Address
from pswire.exits import ExitCode
from pswire.logs.events import event
from pswire.model.plan import Plan
from pswire.v1 import shard_pb2

log = logging.getLogger("ps-server")


def make_job(
    settings: ServerSettings,
    hosts: tuple[Address, ...],
    host: ShardHost,
    announce: Announce,
    wake: Callable[[], object],
    begin_again: Callable[[str], object],
    folder: int,
) -> ServedJob:
    """Make the job of server 0: its run folder, log, checkpoint and followers.

    `hosts`: of all servers, with this one's real port; `wake`: called when the job is over; `begin_again`: called
    with the reason when a server was lost that may come back; `folder`: the number of the job's folder. Raises
    FolderError, CheckpointError, RewindError, LogError.
    """

    def lost(server: int, cause: str, reason: str) -> None:
        log.error("%s", reason, extra=event("server_lost", server=server))
        if (
            settings.recover
            and cause == LOST
            and job.decider.checkpoints is not None
            and job.stopped() is None
        ):
            begin_again(reason)
        else:
            job.stop(reason, success=False, cause="server" if cause == LOST else cause)

    def planned(plan: Plan) -> None:
        try:
            run_log.reserve_weights(plan)
        except LogError as error:
            log.warning(
                "%s; the final weights may have to go elsewhere", error, extra=event("no_room_for_weights")
            )
        announce("plan", {"fingerprint": plan.fingerprint, "text": plan.describe()})

    settings = replace(settings, terms=name_job(settings, host.runtime.disk()))
    going_on = resume_point(settings, announce, host.runtime.disk())
    check: Check = always
    if settings.out is not None and settings.has_generations:
        check = Fence(settings.out / CHECKPOINTS / GENERATION)
    run_log = run_log_of(
        settings, None if going_on is None else going_on.mark, check, host.runtime.disk(0o644)
    )
    agreement = Agreement(settings.terms, settings.policy, settings.optimizer)
    decider = Decider(agreement, host, run_log, settings.log_to_disk, wake)
    job = ServedJob(decider, planned, settings.security)
    _warn_of_room(settings)
    secret = new_secret()
    host.open(settings.terms.job, secret)
    job.routes.followers.extend(
        _followers(settings, hosts, host.runtime, secret, folder, lost, decider.executed)
    )
    if settings.out is not None and settings.keep:
        store, followers = Store(settings.out / CHECKPOINTS, host.runtime.disk()), job.routes.followers
        names = set() if going_on is None else going_on.names
        job.decider.checkpoints = Checkpoints(
            job.agreement,
            settings.out,
            store,
            settings.keep,
            host,
            run_log,
            followers,
            names,
            decider.unsaved,
        )
    if going_on is not None:
        if going_on.checkpoint is not None:
            job.go_on(going_on.checkpoint, going_on)
        # From here on nothing refuses the run. A refused run must leave the folder unchanged.
        going_on.cut()
        run_log.open()
    return job


def _warn_of_room(settings: ServerSettings) -> None:
    workers, room = settings.terms.workers, most_workers()
    if workers > room:
        log.warning(
            "%d workers are expected, and this server has descriptors (ulimit -n) for %d at once",
            *(workers, room),
            extra=event("too_many_workers", workers=workers, room=room),
        )


def _followers(
    settings: ServerSettings,
    hosts: tuple[Address, ...],
    runtime: Runtime,
    secret: bytes,
    folder: int,
    lost: Callable[[int, str, str], None],
    executed: Callable[[int, VersionMade], None],
) -> Iterator[Follower]:
    """Yield the other servers."""
    timeout, patience = settings.terms.worker_timeout, settings.recover if settings.again else None
    for server in range(1, len(hosts)):
        message = shard_pb2.Open(
            job=settings.terms.job,
            epoch=settings.terms.generation,
            task_index=server,
            servers=len(hosts),
            secret=secret,
            recover_timeout=settings.recover,
            # The first folder is the default.
            folder=folder if folder > 1 else 0,
        )
        common = (runtime, lost, executed, patience, settings.credentials)
        yield Follower(server, hosts[server], message, timeout, *common)


def run_log_of(settings: ServerSettings, going_on: Mark | None, check: Check, disk: RealDisk) -> RunLog:
    """Return the log of a job that begins here, which counts if there are metrics. Raises LogError."""
    found = RunLog(settings.out, going_on, check, settings.rescue, disk)
    if settings.metrics_port is not None:
        from psserver.metrics.counts import Counts

        found.counts = Counts()
    return found


def resume_point(settings: ServerSettings, announce: Announce, disk: RealDisk) -> ResumePoint | None:
    """Return the checkpoint to resume from, if any, and announce what is passed over. Raises CheckpointError,
    RewindError."""
    if settings.out is None or settings.resume is None:
        return None
    room = settings.host.memory_limit or default_limit()
    found = find(
        settings.out, settings.resume, settings.terms, settings.policy, settings.optimizer, disk, room
    )
    for sentence in () if found is None else found.warnings:
        announce("warning", {"text": sentence})
    return found


class Coordinating:
    """The role of server 0. `rpc`: the methods that workers call. The loop's thread owns it."""

    def __init__(
        self,
        settings: ServerSettings,
        host: ShardHost,
        continuation: Continuation,
        listeners: Listeners,
        announce: Announce,
        out: Path | None,
        folder: int,
    ) -> None:
        """`out`: the folder of number 1; this job has number `folder`. Raises as `make_job`."""
        self._settings, self._continuation, self._listeners = settings, continuation, listeners
        self._announce, self._out, self._folder = announce, out, folder
        hosts, wake = continuation.hosts, continuation.wake.set
        self.job = job = make_job(settings, hosts, host, announce, wake, continuation.begin_again, folder)
        place = "" if settings.out is None else str(settings.out.absolute())
        self.rpc = CoordinatorRpc(hosts[0], settings.security, place)
        self.rpc.lead(job)

    async def run(self) -> ExitCode:
        """Run until the job is over, or a signal comes."""
        job, going = self.job, self._continuation
        for follower in job.routes.followers:
            follower.start()
        results = Results(job)
        life = JobLoop(
            job,
            going.wake,
            lambda: going.signal,
            lambda: going.again is not None,
        )
        await life.watch(results)
        if going.again is not None and going.signal is None:
            return await self._abandon()
        going.again = None
        code = await self._conclude(results)
        stopped = job.stopped()
        assert stopped is not None
        if going.signal is None:
            await self.rpc.wait_for_log_readers()
        following = job.agreement.following
        if following is not None and going.signal is None and code in (ExitCode.OK, ExitCode.JOB_FAILED):
            if all(follower.state != "lost" for follower in job.routes.followers):
                going.following = replace(following, folder=free(self._out, self._folder + 1))
            else:
                code = ExitCode.UNREACHABLE
        next_folder = 0 if going.following is None else going.following.folder
        for follower in job.routes.followers:
            await follower.shutdown(code, stopped.reason, next_folder)
        return code

    async def _conclude(self, results: Results) -> ExitCode:
        """Write what is kept of a job that is over; return its exit code."""
        job, out = self.job, self._settings.out
        results.begin()
        # The log must not wait for a disk that delays the last checkpoint.
        job.decider.write_or_fail(job.routes.run_log.flush)
        if job.decider.checkpoints is not None:
            await job.decider.checkpoints.finish()
        code = await results.conclude()
        say_how_to_go_on(out, code, job.host.runtime.disk())
        self._listeners.write_metrics()
        stopped = job.stopped()
        assert stopped is not None
        ended: dict[str, Any] = {"reason": stopped.reason, "version": stopped.version, "exit_code": int(code)}
        ended["kept_back"] = job.coordinator.state.kept_back.sentence()
        if out is not None:
            ended["out"] = str(out)
        self._announce("stopped", ended)
        return code

    async def _abandon(self) -> ExitCode:
        """End this generation without telling anybody: workers and servers look for the one that continues.

        Decisions behind the newest checkpoint are void.
        """
        job, served = self.job, self._listeners.grpc
        assert served is not None
        await served.stop(grace=0)
        for follower in job.routes.followers:
            await follower.abandon()
        if job.decider.checkpoints is not None:
            # A checkpoint that all servers have written is completed; any other is given up, because no follower is
            # there.
            await job.decider.checkpoints.finish()
        try:
            job.routes.run_log.close()
        except LogError as error:
            log.error("%s", error, extra=event("run_folder_failed"))
            self._continuation.again = None
            return error.code
        return ExitCode.UNREACHABLE


def lock_folder(settings: ServerSettings, disk: RealDisk) -> FolderLock | None:
    """Make the run folder, and lock it. Raises FolderError, CheckpointError."""
    out, resume = settings.out, settings.resume
    if out is None:
        return None
    if resume is None:
        ended = succeeded(out)
        if ended is not None:
            raise FolderError(
                f"{out}: the job there has succeeded already ({ended}); for a new run name another folder"
            )
        if Store(out / CHECKPOINTS, disk).written():
            raise FolderError(
                f"{out}: holds checkpoints of a run already; name another folder, or remove that one"
            )
        make_folder(out, disk)
    elif resume != AUTO and not (out / DECISIONS).is_file():
        # Make nothing there: the name may be wrong.
        raise CheckpointError(f"{out}: holds no run to go on with: it has no {DECISIONS}")
    # The lock makes the folder too.
    return FolderLock(out / CHECKPOINTS)
