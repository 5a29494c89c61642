"""Makes the job of server 0: its run folder, its log, the checkpoint that it goes on from, its followers."""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from psserver.checkpoint import Store
from psserver.checkpoint.generations import FILE as GENERATION
from psserver.checkpoint.rewind import Mark
from psserver.receipts import new_secret, opening
from psserver.service.guard.workers import Capacity
from psserver.service.job.follower import LOST, Follower
from psserver.service.job.job import Job
from psserver.service.job.json_lines import Check, Fence, LogError, always
from psserver.service.job.run_log import RunLog
from psserver.service.life.settings import ServerSettings
from psserver.service.store.checkpoints import Checkpoints
from psserver.service.store.host import ShardHost
from psserver.service.store.resume_point import FOLDER as CHECKPOINTS
from psserver.service.store.resume_point import ResumePoint, find, name_job
from pswire.addresses import Address
from pswire.logs.events import event
from pswire.model.plan import Plan
from pswire.v1 import shard_pb2

log = logging.getLogger("ps-server")

# Called with what happens, and facts of it.
Announce = Callable[[str, Mapping[str, Any]], None]


def make_job(
    settings: ServerSettings,
    hosts: tuple[Address, ...],
    host: ShardHost,
    announce: Announce,
    wake: Callable[[], object],
    begin_again: Callable[[str], object],
    folder: int,
) -> Job:
    """`hosts`: of all servers, this one's as it is; `wake`: called when the job is over; `begin_again`: when a server
    was lost that may come back, with the reason; `folder`: the number of the job's folder. Raises FolderError,
    CheckpointError, RewindError, LogError."""

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

    settings = replace(settings, terms=name_job(settings))
    going_on = _going_on(settings)
    run_log = _run_log(settings, None if going_on is None else going_on.mark)
    job = Job(
        settings.terms,
        settings.policy,
        settings.optimizer,
        host,
        run_log,
        planned,
        wake,
        settings.log_flush,
        settings.security,
    )
    _warn_of_room(settings, job.capacity)
    secret = new_secret()
    host.open(settings.terms.job, secret)
    job.routes.followers.extend(_followers(settings, hosts, secret, folder, lost, job.decider.tried))
    if settings.out is not None and settings.keep:
        store, followers = Store(settings.out / CHECKPOINTS), job.routes.followers
        names = set() if going_on is None else going_on.names
        job.decider.checkpoints = Checkpoints(
            settings.out, store, settings.keep, host, run_log, followers, names
        )
    if going_on is not None:
        if going_on.checkpoint is not None:
            job.go_on(going_on.checkpoint, going_on)
        # From here on nothing refuses it: a run that is refused is left as it was.
        going_on.cut()
        run_log.open()
    return job


def _warn_of_room(settings: ServerSettings, capacity: Capacity) -> None:
    if settings.terms.workers > capacity.workers:
        log.warning(
            "%d workers are expected, and this server has room for %d at once: %s",
            *(settings.terms.workers, capacity.workers, capacity.why),
            extra=event("too_many_workers", workers=settings.terms.workers, room=capacity.workers),
        )


def _followers(
    settings: ServerSettings,
    hosts: tuple[Address, ...],
    secret: bytes,
    folder: int,
    lost: Callable[[int, str, str], None],
    tried: Callable[[int, int, bool, float], None],
) -> Iterator[Follower]:
    """The other servers."""
    timeout, patience = settings.terms.worker_timeout, settings.recover if settings.again else None
    for server in range(1, len(hosts)):
        message = shard_pb2.Open(
            job=settings.terms.job,
            epoch=settings.terms.generation,
            task_index=server,
            servers=len(hosts),
            secret=secret,
            proof=opening(settings.job_secret, settings.terms.job, server, secret),
            recover_timeout=settings.recover,
            # The first one goes without saying.
            folder=folder if folder > 1 else 0,
        )
        yield Follower(server, hosts[server], message, timeout, lost, tried, patience, settings.credentials)


def _run_log(settings: ServerSettings, going_on: Mark | None) -> RunLog:
    check: Check = always
    if settings.out is not None and settings.has_generations:
        check = Fence(settings.out / CHECKPOINTS / GENERATION)
    if settings.metrics_port is None:
        return RunLog(settings.out, going_on, check, settings.rescue)
    from psserver.metrics.counts import CountedRunLog

    return CountedRunLog(settings.out, going_on, check, settings.rescue)


def _going_on(settings: ServerSettings) -> ResumePoint | None:
    """The checkpoint to go on from, if any. Raises CheckpointError, RewindError."""
    if settings.out is None or settings.resume is None:
        return None
    return find(settings.out, settings.resume, settings.terms, settings.policy, settings.optimizer)
