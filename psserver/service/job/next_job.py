"""The job that follows another one on the same servers, and its folder.

A job makes room for a next one in two cases:

- Nothing was trained, its workers have left, and a worker with another model comes: a failed first try needs no
  restart.
- It rests between two fits, and one of its workers begins another job: the next fold, a recompiled model, or another
  one. Only workers of the former job may join that job: a script that is started again would begin with its first fit,
  on other data.

The next job begins with new servers in the same processes, in a folder of its own, so nothing of a former job is left
in them. Workers that have not left the former job have the usual time for that.
"""

import json
from pathlib import Path
from typing import Final, NoReturn

from psserver.checkpoint.rewind import SUMMARY, UNREADABLE
from psserver.coordinator import inputs
from psserver.service.errors import RequestRefused, precondition, unavailable
from psserver.service.job.agreement import NextJob, agreed
from psserver.service.job.decider import Decider
from pswire import protocol

# Cause of the end of a job that makes room.
REPLACED: Final = "replaced"


def join_the_next() -> RequestRefused:
    """Return the answer to a worker that comes while a job makes room."""
    return unavailable(
        "the job before has ended, and another one begins: join again in a moment",
    )


def make_room(decider: Decider, following: NextJob, reason: str, *, success: bool) -> None:
    """End the job, because another one begins. Raises Refused where none may."""
    if decider.replicated:
        raise precondition(
            f"servers with --replicas serve one job, and another one would begin here ({reason}): start them again"
        )
    decider.agreement.following = following
    decider.input(inputs.Stopping(reason, success, REPLACED))


def begin_next(decider: Decider, worker: str, optimizer: str) -> NoReturn:
    """End `worker`'s part of this job, and the job, because its process begins another one, with this optimizer (JSON;
    empty: the server's). Raises Refused."""
    # Who cannot take part in the next job begins none.
    agreed(decider.agreement.configured, optimizer)
    state, job = decider.coordinator.state, decider.coordinator.terms.job
    tally = state.roster.tallies.get(worker)
    if tally is None or not tally.arrived:
        raise precondition(f"{worker!r} was never a worker of job {job}: it can begin no job that follows it")
    if state.stopped is None and not state.resting:
        raise unavailable(f"job {job} still trains: join again in a moment")
    if state.stopped is None:
        following = NextJob((job,), len(state.roster.here()))
        reason = f"the fit of all workers is done, and {worker} begins another job"
        make_room(decider, following, reason, success=True)
    if (member := state.roster.present.get(worker)) is not None:
        decider.handle(worker, member.incarnation, protocol.Leave("begins another job"))
    if decider.agreement.following is not None:
        raise join_the_next()
    raise precondition(
        f"job {job} is over, and its servers end with it: expected the worker's session to stay open (no close(), no "
        "`with`) until it begins the next job"
    )


# Folders


def numbered(out: Path, number: int) -> Path:
    """Return folder `number`: `out` itself, then job-2, job-3 in it, so that all jobs of a server are together."""
    return out if number == 1 else out / f"job-{number}"


def free(out: Path | None, number: int) -> int:
    """Return the number of the first folder from `number` on that is not there yet."""
    while out is not None and numbered(out, number).exists():
        number += 1
    return number


def newest(out: Path) -> int:
    """Return the number of the newest job's folder, from 1."""
    number = 1
    while numbered(out, number + 1).is_dir():
        number += 1
    return number


def predecessors(out: Path, folder: int) -> tuple[str, ...]:
    """Return the jobs whose workers may join the job of that folder: the newest before it that was trained, and those
    that have made room since. Empty: anybody may."""
    found = []
    for number in range(folder - 1, 0, -1):
        try:
            summary = json.loads((numbered(out, number) / SUMMARY).read_bytes())
            found.append(str(summary["job"]))
            if summary["success"] is True:
                return tuple(found)
        except (OSError, *UNREADABLE):
            continue
    return ()
