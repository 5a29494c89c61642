"""The end of a job: the final weights from all shards, the summary, the exit code."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc
import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from psserver.checkpoint import CheckpointError, Store
from psserver.checkpoint.disk import RealDisk
from psserver.coordinator import JobTerms
from psserver.receipts import membership_token
from psserver.service.job.follower import Follower
from psserver.service.job.job import ServedJob
from psserver.service.job.log_file import LogError
from psserver.service.store.resume_point import FOLDER as CHECKPOINTS
from psserver.summary import summarise
from pswire.exits import ExitCode
from pswire.logs.events import event
from pswire.model.plan import Plan, weights_sha256
from pswire.model.tables import joined_parts
from pswire.model.variables import WholeTables
from pswire.patience import transfer
from pswire.transport.codecs import FLOAT32, ElementDecoder
from pswire.transport.failures import reason
from pswire.v1 import shard_pb2

log = logging.getLogger("ps-server")

Floats = NDArray[np.float32]
Read = TypeVar("Read")
EXIT_CODES = {
    "missing": ExitCode.MISSING,
    "empty": ExitCode.JOB_FAILED,
    "policy": ExitCode.JOB_FAILED,
    "replaced": ExitCode.JOB_FAILED,
    "abandoned": ExitCode.ABANDONED,
    "server": ExitCode.UNREACHABLE,
    "untrusted": ExitCode.UNTRUSTED,
    "diverged": ExitCode.DIVERGED,
    "SIGINT": ExitCode.INTERRUPTED,
    "SIGTERM": ExitCode.TERMINATED,
}
# Seconds that the last entries may take to be executed everywhere.
PATIENCE = 60.0
# Seconds that a server's part of a table may take: tables can be far larger than what a link is planned for.
FINAL_TABLES: Final = 3600.0


def exit_code(job: ServedJob) -> ExitCode:
    """Return the exit code of a job that is over."""
    if job.decider.failure is not None:
        return job.decider.failure.code
    stopped = job.coordinator.state.stopped
    assert stopped is not None
    if stopped.success:
        return ExitCode.OK
    return EXIT_CODES[stopped.cause]


def say_how_to_go_on(out: Path | None, code: ExitCode, disk: RealDisk) -> None:
    """Say so, after a job that has failed and can go on from a checkpoint."""
    if out is None or code in (ExitCode.OK, ExitCode.MISSING):
        return
    try:
        newest = Store(out / CHECKPOINTS, disk).newest()
    except CheckpointError:
        return
    if newest is not None:
        fields = event("can_go_on", version=newest.version)
        log.warning(
            "version %d is saved: to go on from there, start all servers with the same options and --resume latest",
            newest.version,
            extra=fields,
        )


class Results:
    """Weights and summary of a job, written as soon as it has stopped, before anybody is waited for.

    `begin` starts a task for that, because other servers are asked; `conclude` waits for it, and writes the summary
    again with the evaluator's report.
    """

    def __init__(self, job: ServedJob) -> None:
        self._job = job
        self._sha256: str | None = None
        self._error: LogError | None = None
        self._writing: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin writing; the job has stopped or decides nothing more. May be called repeatedly."""
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())

    @property
    def hopeless(self) -> bool:
        """Whether the job succeeded but its weights are lost with a server: a restart may recover them."""
        stopped = self._job.coordinator.state.stopped
        lost = any(follower.state == "lost" for follower in self._job.routes.followers)
        ended_well = stopped is not None and stopped.in_order
        return ended_well and lost and self._writing is not None and self._writing.done() and self._incomplete

    async def conclude(self) -> ExitCode:
        """Return the exit code of the whole. Call it once the job is over.

        A job that could not decide any more has no summary, because its counts would include decisions that its log
        does not hold. Its last version is written.
        """
        self.begin()
        assert self._writing is not None
        # Every wait in it has a limit.
        await self._writing
        code = exit_code(self._job)
        if code in (ExitCode.OK, ExitCode.MISSING) and self._error is None and self._incomplete:
            # A server was lost when nobody waited for it any more; its log says so.
            code = ExitCode.UNREACHABLE
        try:
            if self._error is not None:
                raise self._error
            self._summarise(concluded=True)
            self._job.routes.run_log.close()
        except LogError as error:
            log.error("%s", error, extra=event("run_folder_failed"))
            code = error.code if code in (ExitCode.OK, ExitCode.MISSING, error.code) else code
        return code

    @property
    def _incomplete(self) -> bool:
        """Whether there is a model whose weights were not written."""
        job = self._job
        return job.agreement.plan is not None and job.coordinator.state.initialised and self._sha256 is None

    async def _write(self) -> None:
        try:
            self._sha256 = await _write_weights(self._job)
            self._job.awaited = None
            self._summarise()
        except LogError as error:
            self._error = error

    def _summarise(self, *, concluded: bool = False) -> None:
        """Write the summary. `concluded`: everybody has left, and nothing follows."""
        if self._job.decider.failure is None:
            found = summary(self._job, self._sha256)
            self._job.routes.run_log.write_summary({**found, "concluded": concluded})
            if concluded and "uncounted" in found:
                log.warning("did not count: %s", found["uncounted"], extra=event("uncounted"))


async def _write_weights(job: ServedJob) -> str | None:
    """Write the last version; return its fingerprint, or None if there is none."""
    weights, plan = await _final_weights(job), job.agreement.plan
    if weights is None or plan is None:
        return None
    tables = await _final_tables(job, plan)
    if tables is None:
        return None
    named = dict(zip([variable.name for variable in plan.variables], weights, strict=True))

    def write() -> str:
        job.routes.run_log.write_weights(named, tables)
        return weights_sha256(plan.variables, weights, tables)

    nbytes = sum(values.nbytes for values in weights) + sum(rows.nbytes for _, rows in tables.values())
    return await job.host.runtime.passes.run(nbytes, write)


async def _final_tables(job: ServedJob, plan: Plan) -> WholeTables | None:
    """Return all rows of the last version by table, or None if a server cannot give them."""
    shard = job.host.state.shard
    assert shard is not None
    found = {}
    for number, table in enumerate(shard.tables.tables):
        parts = [table.octets()]
        for follower in job.routes.followers:
            limit = FINAL_TABLES
            job.awaited = (f"the final rows of server {follower.server}", job.host.runtime.now(), limit)
            try:
                read = partial(_read_table, follower, job, plan, number, limit)
                parts.append(await _insisting(follower, job.routes.sent, read))
            except (grpc.RpcError, DecodeError) as error:
                why = reason(error) if isinstance(error, grpc.RpcError) else error
                log.error(
                    "%s did not give its final rows: %s",
                    *(follower.name, why),
                    extra=event("no_final_weights"),
                )
                return None
        found[table.spec.name] = joined_parts(table.spec, parts)
    for follower in job.routes.followers if plan.tables else ():
        # What they held at last is in the summary.
        await follower.wait_measured(job.routes.sent, PATIENCE)
    return found


def summary(job: ServedJob, sha256: str | None) -> dict[str, Any]:
    """Return the contents of summary.json. Only for a job that is over."""
    stopped = job.coordinator.state.stopped
    assert stopped is not None
    metrics = dict(job.evaluations.last)
    if "loss" not in metrics and job.routes.run_log.last_loss is not None:
        metrics["training_loss"] = job.routes.run_log.last_loss
    begun, end = job.routes.first_grant, job.routes.stopped_at or stopped.at
    seconds = 0.0 if begun is None else end - begun
    tables = [*job.host.table_figures(), *(table for each in job.routes.followers for table in each.tables)]
    found = summarise(job.coordinator, metrics=metrics, seconds=seconds, sha256=sha256, tables=tables)
    # A job that was ended early has more data than it wanted.
    missing = job.progress.missing(job.coordinator) if stopped.cause in ("done", "missing") else {}
    return {**found, "missing": missing, "security": job.security}


async def _final_weights(job: ServedJob) -> list[Floats] | None:
    """Return all variables of the last version, or None if a server cannot give them."""
    plan = job.agreement.plan
    if plan is None or not job.coordinator.state.initialised:
        return None
    why: object
    entries, version = job.routes.sent, job.routes.version
    if not await job.host.wait_executed(entries, PATIENCE):
        why = job.host.state.failure or "too slow"
        log.error("this server did not finish the log: %s", why, extra=event("no_final_weights"))
        return None
    assert job.host.state.shard is not None
    own = job.host.state.shard.arena.values(version)
    if own is None:
        # The job failed between the decision to install or apply and its execution.
        log.error("version %d is not here; no final weights", version, extra=event("no_final_weights"))
        return None
    flats = [own]
    for follower in job.routes.followers:
        job.awaited = (f"server {follower.server} to finish the log", job.host.runtime.now(), PATIENCE)
        if not await follower.wait_executed(entries, PATIENCE):
            why = "is not there" if follower.missing else "did not finish the log"
            fields = event("no_final_weights")
            log.error("%s %s; no final weights", follower.name, why, extra=fields)
            return None
        try:
            limit = transfer(plan.shards[follower.server].nbytes, job.terms.worker_timeout)
            job.awaited = (f"the final weights of server {follower.server}", job.host.runtime.now(), limit)
            read = partial(_read, follower, job.terms, job.host.secret, plan, version, limit)
            flats.append(await _insisting(follower, entries, read))
        except (grpc.RpcError, DecodeError) as error:
            why = reason(error) if isinstance(error, grpc.RpcError) else error
            log.error(
                "%s did not give its final weights: %s",
                *(follower.name, why),
                extra=event("no_final_weights"),
            )
            return None
    return plan.gather(flats)


async def _insisting(follower: Follower, entries: int, read: Callable[[], Awaitable[Read]]) -> Read:
    """Return what `read` returns; read again where another server may take the place of one that fails. Raises
    RpcError."""
    while True:
        try:
            return await read()
        except grpc.RpcError:
            if not await follower.again() or not await follower.wait_executed(entries, PATIENCE):
                raise


async def _read(
    follower: Follower, job_terms: JobTerms, secret: bytes, plan: Plan, version: int, limit: float
) -> Floats:
    """Read a server's weights, for as long as a link may take: a server that gives nothing must not keep the others
    from ending."""
    values = np.empty(plan.shards[follower.server].elements, np.float32)
    decoder = ElementDecoder(FLOAT32, values)
    async for chunk in _pulled(follower, job_terms, secret, plan, version, limit):
        decoder.feed(chunk)
    return values


async def _read_table(
    follower: Follower, job: ServedJob, plan: Plan, number: int, limit: float
) -> NDArray[np.uint8]:
    """Read a server's part of a table."""
    found = bytearray()
    version = job.routes.version
    async for chunk in _pulled(follower, job.terms, job.host.secret, plan, version, limit, table=number + 1):
        found += chunk
    return np.frombuffer(found, np.uint8)


async def _pulled(
    follower: Follower,
    job_terms: JobTerms,
    secret: bytes,
    plan: Plan,
    version: int,
    limit: float,
    table: int = 0,
) -> AsyncIterator[memoryview]:
    request = shard_pb2.PullRequest(
        job=job_terms.job,
        version=version,
        plan=plan.fingerprint,
        dtype=FLOAT32.number,
        ticket=0,
        membership_token=membership_token(secret, job_terms.job, "", 0),
        table=table,
    )
    call: Any = follower.channel.unary_stream(
        "/pswire.v1.Shard/Pull",
        request_serializer=shard_pb2.PullRequest.SerializeToString,
        response_deserializer=None,
    )
    async for message in call(request, timeout=limit):
        yield memoryview(shard_pb2.PullReply.FromString(message).chunk)
