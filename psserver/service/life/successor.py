"""The job that follows one that has ended, where servers stay.

The ended job is complete: its log, summary and weights are written, its last version is evaluated. The servers
wait. The first Join of a worker without a job decides what follows: the same job continues where it ended, if the
worker names the same model, optimizer and data and there is a checkpoint of the end; otherwise a new job begins, in
a folder of its own. Either begins with new servers in the same processes, so that nothing of a former job is left
in them.

Also where servers do not stay, a job in which nothing was trained makes room for a worker with another model, once
all of its own have left, so that a failed first try needs no restart. And a job that rests between two phases ends
for the first of its workers that begins another job: a recompiled model, or another one. The others have the time
that a leave takes, and come to the new job too.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc

from psserver.checkpoint.rewind import SUMMARY, UNREADABLE
from psserver.coordinator.units import WorkTerms
from psserver.service.errors import Refused, precondition
from psserver.service.job.agreement import Named, agreed, planned
from psserver.service.job.job import Job
from psserver.service.job.joining import REPLACED
from psserver.service.store.resume_point import complete
from pswire import protocol
from pswire.generations import follows


@dataclass(frozen=True, slots=True)
class Successor:
    """The next job. `folder`: which of the server's folders, from 1. `goes_on`: the job of that folder continues.
    `workers`: how many its start waits for; 0: as many as the server was started for. `behind`: the job whose
    workers alone may take part, because their scripts have trained it before; empty: anybody."""

    folder: int
    goes_on: bool
    workers: int = 0
    behind: str = ""


class Succession:
    """The decision what follows one job. `out`: the folder that the server was started with; this job has number
    `folder`. `behind`: as for the `Successor` that it is."""

    def __init__(
        self,
        job: Job,
        stays: bool,
        out: Path | None,
        folder: int,
        decided: Callable[[], object],
        behind: str = "",
    ) -> None:
        self._job, self._stays = job, stays
        self._out, self._folder = out, folder
        self._decided, self._behind = decided, behind
        # The next job, once a worker has asked for it.
        self.successor: Successor | None = None
        # Number of workers of a job that ended between two phases; they come to the next one.
        self._workers = 0

    @property
    def open(self) -> bool:
        """Whether the job has stopped and another one may follow."""
        stopped = self._job.coordinator.state.stopped
        if self._job.decider.failure is not None or stopped is None:
            return False
        return self._stays or stopped.cause == REPLACED

    @property
    def limit(self) -> float:
        """Seconds that the servers wait for a worker at most: the one that makes a job's room is there already."""
        return math.inf if self._stays else 6 * self._job.terms.worker_timeout

    def leave_for_next_job(self, worker: str) -> None:
        """End `worker`'s part of this job, and the job, because it begins another one.

        Raises Refused while the job trains, and for a worker that never took part.
        """
        job, coordinator = self._job, self._job.coordinator
        roster = coordinator.state.roster
        tally = roster.tallies.get(worker)
        if tally is None or not tally.arrived:
            raise precondition(
                f"{worker!r} was never a worker of job {job.terms.job}: expected a Join without `after`"
            )
        if coordinator.state.stopped is None and not coordinator.state.resting:
            raise Refused(
                grpc.StatusCode.UNAVAILABLE, f"job {job.terms.job} still trains: join again in a moment"
            )
        if coordinator.state.stopped is None:
            self._workers = len(roster.here())
            job.stop(
                f"the fit of all workers is done, and {worker} begins another job",
                success=True,
                cause=REPLACED,
            )
        member = roster.present.get(worker)
        if member is not None:
            job.decider.handle(worker, member.incarnation, protocol.Leave("begins another job"))

    def check_predecessor(self, after: str) -> None:
        """Raise Refused unless a new worker of this running job comes from its predecessor: its script would begin
        with data that the others have finished."""
        if self._behind and after != self._behind and not follows(self._behind, after):
            raise precondition(
                f"job {self._job.terms.job} is number {self._folder} of its workers' scripts, which have trained "
                f"others before: expected a worker that comes from job {self._behind}; a script that is started again "
                "would begin with its first fit, on other data, so the others go on without it"
            )

    def ask(
        self,
        model: Named,
        plan: str,
        optimizer: str,
        work: WorkTerms | None,
        *,
        anew: bool = False,
    ) -> None:
        """Choose the next job for a worker of no job, once this job has stopped. `anew`: nothing of this job
        continues.

        Always raises Refused, so that the worker comes again in a moment; PlanError if its model cannot be planned.
        """
        job, agreement = self._job, self._job.agreement
        proposed = planned(agreement, model, plan)
        chosen = agreed(agreement.configured, optimizer)
        if job.decider.over and self.successor is None:
            same = (
                not anew
                and agreement.plan is not None
                and agreement.plan.fingerprint == proposed.fingerprint
                and agreement.optimizer is not None
                and agreement.optimizer.config == chosen.config
                and job.coordinator.state.work_terms == work
            )
            self.successor = self._choose(same)
            self._decided()
        raise Refused(
            grpc.StatusCode.UNAVAILABLE,
            f"job {job.terms.job} has ended, and another one begins: join again in a moment",
        )

    def _choose(self, same: bool) -> Successor:
        stopped = self._job.coordinator.state.stopped
        if same and self._out is not None and stopped is not None and stopped.cause == "done":
            if complete(numbered(self._out, self._folder), stopped.version):
                return Successor(self._folder, goes_on=True)
        number, job = self._folder + 1, self._job.terms.job
        while self._out is not None and numbered(self._out, number).exists():
            number += 1
        return Successor(number, goes_on=False, workers=self._workers, behind=job if self._workers else "")


def numbered(out: Path, number: int) -> Path:
    """Return folder `number`: `out` itself, then job-2, job-3 in it, so that all jobs of a server are together."""
    return out if number == 1 else out / f"job-{number}"


def newest(out: Path) -> int:
    """Return the number of the newest job's folder, from 1."""
    number = 1
    while numbered(out, number + 1).is_dir():
        number += 1
    return number


def ended_before(out: Path, folder: int) -> str:
    """Return the job that the workers of that folder's job have ended before, where servers do not stay; empty:
    none."""
    try:
        found = json.loads((numbered(out, folder - 1) / SUMMARY).read_bytes())
        return str(found["job"]) if folder > 1 and found["success"] is True else ""
    except (OSError, *UNREADABLE):
        return ""
