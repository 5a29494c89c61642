"""How much of a job's work is done, as far as its length is known."""

import math
from dataclasses import dataclass

from psserver.coordinator.state import JobState
from psserver.coordinator.terms import JobTerms


@dataclass(frozen=True, slots=True)
class JobProgress:
    """Progress of a job: `done` of `total` `unit`. `epoch` counts from 1 (0: no epochs). `seconds_left`: NaN
    without a pace."""

    epoch: int
    epochs: int
    done: int
    total: int
    unit: str
    seconds_left: float


def measured(job: JobState, terms: JobTerms) -> JobProgress | None:
    """Return the progress without the time left; None if the length of the job is unknown."""
    data = dealt(job) if job.work is not None else _own(job)
    versions = terms.versions
    if not versions:
        return data
    limit = JobProgress(0, 0, min(job.version, versions), versions, "versions", math.nan)
    if data is None or not data.total:
        return limit
    # The job ends with whichever comes first.
    return data if data.done / data.total > limit.done / limit.total else limit


def _own(job: JobState) -> JobProgress | None:
    """Measure workers with data of their own; None until each has reported its extent."""
    roster = job.roster
    taking_part = [name for name, tally in roster.tallies.items() if tally.arrived]
    taking_part = [n for n in taking_part if n in roster.present or n in job.extents]
    if not taking_part or any(name not in job.extents for name in taking_part):
        return None
    done = total = 0
    epochs = max(job.extents[name].epochs for name in taking_part)
    epoch = epochs
    for name in taking_part:
        extent, batch = job.extents[name], roster.tally(name).next_batch
        done, total = done + min(batch, extent.batches), total + extent.batches
        if name in roster.present and extent.batches:
            epoch = min(epoch, _epoch(batch, extent.batches, extent.epochs))
    return JobProgress(epoch, epochs, done, total, "batches", math.nan)


def dealt(job: JobState) -> JobProgress:
    """Return the progress of a job that deals work units."""
    work = job.work
    assert work is not None
    terms = work.terms
    if work.parts:
        done, total = work.counted + work.skipped, terms.epochs * work.parts_each
        return JobProgress(_epoch(done, total, terms.epochs), terms.epochs, done, total, "parts", math.nan)
    total = terms.units * terms.epochs
    done = max(0, total - work.fresh - len(work.held) - len(work.lost))
    return JobProgress(_epoch(done, total, terms.epochs), terms.epochs, done, total, "units", math.nan)


def _epoch(done: int, total: int, epochs: int) -> int:
    """Return the epoch that is under way."""
    return min(epochs, done * epochs // total + 1) if total else 0
