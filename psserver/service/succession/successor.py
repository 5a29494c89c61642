"""Servers that stay: which job comes behind one that has ended.

The ended job is whole: its log, summary and weights are written, its last version is evaluated. The servers wait. The
first Join that belongs to no job yet says what comes: the same job goes on where it ended, if the worker names the same
model, optimizer and data and there is a checkpoint of the end; or a new job begins, in a folder of its own. Either
begins with servers that are started anew in the same processes, so that nothing of a former job is left in them.

Also where servers do not stay, a job in which nothing was trained makes room for a worker with another model, once all
of its own have left: a first try that failed costs no restart of the servers.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc

from psserver.coordinator.work.units import WorkTerms
from psserver.service.errors import Refused
from psserver.service.job.agreement import Variables, agreed, planned
from psserver.service.job.job import Job
from psserver.service.job.joining import REPLACED
from psserver.service.saving.resume_point import complete


@dataclass(frozen=True, slots=True)
class Successor:
    """`folder`: which of the server's folders, from 1. `goes_on`: the job of that folder does."""

    folder: int
    goes_on: bool


class Succession:
    """Of one job. `out`: the folder that the server was started with, of which this job has number `folder`."""

    def __init__(
        self, job: Job, stays: bool, out: Path | None, folder: int, decided: Callable[[], object]
    ) -> None:
        self._job, self._stays = job, stays
        self._out, self._folder = out, folder
        self._decided = decided
        # What comes next, once somebody has asked for it.
        self.successor: Successor | None = None

    @property
    def open(self) -> bool:
        """The job has stopped, and another one may follow."""
        stopped = self._job.coordinator.stopped
        if self._job.failure is not None or stopped is None:
            return False
        return self._stays or stopped.cause == REPLACED

    @property
    def limit(self) -> float:
        """Seconds that the servers wait for a worker at most: the one that makes a job's room is there already."""
        return math.inf if self._stays else 6 * self._job.terms.worker_timeout

    def ask(self, variables: Variables, plan: str, optimizer: str, work: WorkTerms | None) -> None:
        """A worker of no job comes, and this job has stopped. Always raises Refused: it is to come again in a moment;
        PlanError when its model cannot be planned."""
        job, agreement = self._job, self._job.agreement
        proposed = planned(agreement, variables, plan)
        chosen = agreed(agreement.configured, optimizer)
        if job.over and self.successor is None:
            same = (
                agreement.plan is not None
                and agreement.plan.fingerprint == proposed.fingerprint
                and agreement.optimizer is not None
                and agreement.optimizer.config == chosen.config
                and job.coordinator.work_terms == work
            )
            self.successor = self._choose(same)
            self._decided()
        raise Refused(
            grpc.StatusCode.UNAVAILABLE,
            f"job {job.terms.job} has ended, and another one begins: join again in a moment",
        )

    def _choose(self, same: bool) -> Successor:
        stopped = self._job.coordinator.stopped
        if same and self._out is not None and stopped is not None and stopped.cause == "done":
            if complete(numbered(self._out, self._folder), stopped.version):
                return Successor(self._folder, goes_on=True)
        number = self._folder + 1
        while self._out is not None and numbered(self._out, number).exists():
            number += 1
        return Successor(number, goes_on=False)


def numbered(out: Path, number: int) -> Path:
    """The folder itself, then FOLDER-2, FOLDER-3."""
    return out if number == 1 else out.with_name(f"{out.name}-{number}")
