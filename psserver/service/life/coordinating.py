"""Server 0: it makes the job, serves its workers, and sees it to its end."""

import logging
from pathlib import Path
from typing import Any

from psserver.checkpoint import CheckpointError, FolderLock, Store
from psserver.checkpoint.resumption import AUTO
from psserver.service.guard.authorization import Names
from psserver.service.job.json_lines import LogError
from psserver.service.job.run_log import DECISIONS, FolderError, make_folder
from psserver.service.life.job_loop import Continuation, JobLoop
from psserver.service.life.listeners import Listeners
from psserver.service.life.making import Announce, make_job
from psserver.service.life.moves import Moves
from psserver.service.life.results import Results
from psserver.service.life.settings import ServerSettings
from psserver.service.life.successor import Succession
from psserver.service.net.coordinator import CoordinatorRpc
from psserver.service.store.host import ShardHost
from psserver.service.store.resume_point import FOLDER as CHECKPOINTS
from psserver.service.store.resume_point import succeeded
from pswire.exits import ExitCode
from pswire.logs.events import event

log = logging.getLogger("ps-server")


class Coordinating:
    """The loop's thread owns it. `rpc`: the methods that workers call."""

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
        """`out`: the folder of number 1, of which this job has number `folder`. Raises as `make_job`."""
        self._settings, self._continuation, self._listeners = settings, continuation, listeners
        self._announce = announce
        hosts, wake = continuation.hosts, continuation.wake.set
        self.job = job = make_job(settings, hosts, host, announce, wake, continuation.begin_again, folder)
        self._succession = Succession(job, settings.process.stay, out, folder, wake, settings.behind)
        tokens = settings.credentials.tokens
        names = Names(tokens.names if tokens else frozenset())
        recovers = bool(settings.recover) and job.decider.checkpoints is not None
        moves = Moves(job, hosts[0], settings.job_secret, recovers, continuation.move)
        moved, security = continuation.moved, settings.security
        place = "" if settings.out is None else str(settings.out.absolute())
        self.rpc = CoordinatorRpc(job, hosts, moves, moved, self._succession, names, security, place)

    async def run(self) -> ExitCode:
        """Until the job is over, or a signal."""
        job, going = self.job, self._continuation
        for follower in job.routes.followers:
            follower.start()
        results = Results(job)
        life = JobLoop(
            job,
            self._settings.process.wait_warning,
            going.wake,
            lambda: going.signal,
            lambda: going.again is not None,
        )
        await life.watch(results)
        if going.again is not None and going.signal is None:
            return await self._let_go()
        going.again = None
        code = await self._conclude(results)
        stopped = job.stopped()
        assert stopped is not None
        if going.signal is None:
            await self.rpc.see_off()
        if not await life.stay(self._succession):
            code = ExitCode.UNREACHABLE
        going.successor = self._succession.successor
        next_folder = 0 if going.successor is None else going.successor.folder
        for follower in job.routes.followers:
            await follower.shutdown(code, stopped.reason, next_folder)
        return code

    async def _conclude(self, results: Results) -> ExitCode:
        """What is kept of a job that is over is written."""
        job, out = self.job, self._settings.out
        results.begin()
        # A disk that holds up the last checkpoint does not hold back the log.
        job.decider.write_or_fail(job.routes.run_log.flush)
        if job.decider.checkpoints is not None:
            await job.decider.checkpoints.finish()
        code = await results.conclude()
        self._listeners.write_metrics()
        stopped = job.stopped()
        assert stopped is not None
        ended: dict[str, Any] = {"reason": stopped.reason, "version": stopped.version, "exit_code": int(code)}
        if out is not None:
            ended["out"] = str(out)
        self._announce("stopped", ended)
        return code

    async def _let_go(self) -> ExitCode:
        """Of what was decided, all that is behind the newest checkpoint is void. Nobody is told of an end: workers and
        servers look for the job that goes on."""
        job, served = self.job, self._listeners.grpc
        assert served is not None
        await served.stop(grace=0)
        for follower in job.routes.followers:
            await follower.abandon()
        if job.decider.checkpoints is not None:
            # One that all have written is completed; any other is given up, now that no follower is there.
            await job.decider.checkpoints.finish()
        try:
            job.routes.run_log.close()
        except LogError as error:
            log.error("%s", error, extra=event("run_folder_failed"))
            self._continuation.again = None
            return error.code
        return ExitCode.UNREACHABLE


def lock_folder(settings: ServerSettings) -> FolderLock | None:
    """Make the run folder, and lock it where it has checkpoints. Raises FolderError, CheckpointError."""
    out, resume = settings.out, settings.resume
    if out is None:
        return None
    if resume is None:
        ended = succeeded(out)
        if ended is not None:
            raise FolderError(
                f"{out}: the job there has succeeded already ({ended}); for a new run name another folder"
            )
        if Store(out / CHECKPOINTS).written():
            raise FolderError(
                f"{out}: holds checkpoints of a run already; name another folder, or remove that one"
            )
        make_folder(out)
    elif resume != AUTO and not (out / DECISIONS).is_file():
        # Nothing is made there: the name may be a wrong one.
        raise CheckpointError(f"{out}: holds no run to go on with: it has no {DECISIONS}")
    # The lock makes the folder, too, where there is none.
    return FolderLock(out / CHECKPOINTS) if settings.keep or resume else None
