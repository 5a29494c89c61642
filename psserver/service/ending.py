"""The end of a job: the final weights from all shards, the summary, the exit code."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from psserver.service.followers import Follower
from psserver.service.job import Job
from psserver.service.json_lines import LogError
from psserver.summary import summarise
from pswire.exits import ExitCode
from pswire.logs import event
from pswire.plan import Plan, weights_sha256
from pswire.transport import frames
from pswire.transport.codecs import FLOAT32
from pswire.v1 import shard_pb2

log = logging.getLogger("ps-server")

Floats = NDArray[np.float32]

EXIT_CODES = {
    "done": ExitCode.OK,
    "versions": ExitCode.OK,
    "empty": ExitCode.JOB_FAILED,
    "policy": ExitCode.JOB_FAILED,
    "abandoned": ExitCode.ABANDONED,
    "server": ExitCode.UNREACHABLE,
    "SIGINT": ExitCode.INTERRUPTED,
    "SIGTERM": ExitCode.TERMINATED,
}

# How long the last entries may take to be executed everywhere, in seconds.
PATIENCE = 60.0


def exit_code(job: Job) -> ExitCode:
    """Of a job that is over."""
    if job.failure is not None:
        return job.failure.code
    stopped = job.coordinator.stopped
    assert stopped is not None
    if stopped.success:
        return ExitCode.OK
    return EXIT_CODES[stopped.cause]


def conclude(job: Job) -> ExitCode:
    """Write weights and summary; the exit code of the whole. Call once the job is over.

    A job that could not decide any more has no summary: its counts would be
    those of decisions that its log does not hold. Its last version is written.
    """
    code = exit_code(job)
    try:
        sha256 = _write_weights(job)
        if job.failure is None:
            job.routes.run_log.write_summary(summary(job, sha256))
        job.routes.run_log.close()
    except LogError as error:
        log.error("%s", error, extra=event("run_folder_failed"))
        code = ExitCode.STORAGE if code in (ExitCode.OK, ExitCode.STORAGE) else code
    return code


def _write_weights(job: Job) -> str | None:
    """The fingerprint of the last version, or None when there is none."""
    weights = _final_weights(job)
    if weights is None or job.plan is None:
        return None
    names = [variable.name for variable in job.plan.variables]
    job.routes.run_log.write_weights(dict(zip(names, weights, strict=True)))
    return weights_sha256(job.plan.variables, weights)


def summary(job: Job, sha256: str | None) -> dict[str, Any]:
    """summary.json. Only for a job that is over."""
    stopped = job.coordinator.stopped
    assert stopped is not None
    metrics = dict(job.metrics)
    if "loss" not in metrics and job.routes.run_log.last_loss is not None:
        metrics["loss"] = job.routes.run_log.last_loss
    begun, end = job.routes.first_grant, job.routes.stopped_at or stopped.at
    seconds = 0.0 if begun is None else end - begun
    return summarise(job.coordinator, metrics=metrics, seconds=seconds, sha256=sha256)


def _final_weights(job: Job) -> list[Floats] | None:
    """All variables of the last version, or None when no server can give them any more."""
    if job.plan is None or not job.coordinator.initialised:
        return None
    entries, version = job.routes.sent, job.routes.version
    if not job.host.wait_executed(entries, PATIENCE):
        why = job.host.state.failure or "too slow"
        log.error("this server did not finish the log: %s", why, extra=event("no_final_weights"))
        return None
    assert job.host.state.shard is not None
    own = job.host.state.shard.arena.values(version)
    if own is None:
        # The job failed between the decision to install or to apply and its execution.
        log.error("version %d is not here; no final weights", version, extra=event("no_final_weights"))
        return None
    flats = [own]
    for follower in job.routes.followers:
        if not follower.wait_executed(entries, PATIENCE):
            log.error(
                "server %d did not finish the log; no final weights",
                follower.server,
                extra=event("no_final_weights"),
            )
            return None
        try:
            flats.append(_read(follower, job.terms.job, job.plan, version))
        except (grpc.RpcError, frames.FrameError) as error:
            log.error(
                "server %d did not give its final weights: %s",
                follower.server,
                error,
                extra=event("no_final_weights"),
            )
            return None
    return job.plan.gather(flats)


def _read(follower: Follower, job: str, plan: Plan, version: int) -> Floats:
    values = np.empty(plan.shards[follower.server].elements, np.float32)
    decoder = FLOAT32.decoder(values)
    request = shard_pb2.PullRequest(
        job=job, version=version, plan=plan.fingerprint, dtype=FLOAT32.number, ticket=0
    )
    call: Callable[[shard_pb2.PullRequest], Iterator[bytes]] = follower.channel.unary_stream(
        "/pswire.v1.Shard/Pull",
        request_serializer=shard_pb2.PullRequest.SerializeToString,
        response_deserializer=None,
    )
    for message in call(request):
        chunk, _ = frames.parse_pull(message)
        decoder.feed(chunk.data)
    return values
