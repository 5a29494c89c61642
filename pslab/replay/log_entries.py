"""The decision log of a run as the entries that the coordinator made and that shards execute."""

from collections.abc import Sequence
from dataclasses import dataclass

from pslab.runs.folder import Run, RunError
from pswire.decisions import entries


@dataclass(frozen=True, slots=True)
class Step:
    """One entry: its number, and `t` seconds since the job began."""

    index: int
    t: float
    entry: entries.Entry


def read_steps(run: Run) -> list[Step]:
    """The whole log in order. Raises RunError naming the line that cannot be read or is out of place.

    Of a run without a summary, which was cut off or goes on: up to its last whole line.
    """
    path = run.log
    steps: list[Step] = []
    for read in run.decisions():
        place = f"{path}:{read.line}"
        if read.i != len(steps):
            raise RunError(f"{place}: expected entry {len(steps)}, got {read.i}: the log was edited")
        steps.append(Step(read.i, read.t, read.fact))
    _check_frame(steps, path.as_posix(), stopped=run.stopped)
    return steps


def job_of(steps: Sequence[Step]) -> entries.Job:
    """Entry 0 of a log."""
    job = steps[0].entry
    assert isinstance(job, entries.Job)
    return job


def servers_of(steps: Sequence[Step]) -> int:
    """How many there were at the end: a job may go on with another number."""
    restored = [step.entry.servers for step in steps if isinstance(step.entry, entries.Restore)]
    return restored[-1] if restored else job_of(steps).servers


def _check_frame(steps: Sequence[Step], path: str, *, stopped: bool) -> None:
    first = steps[0].entry if steps else None
    if not isinstance(first, entries.Job):
        raise RunError(f"{path}: expected a job entry first: the log is empty or was edited")
    if first.format != entries.FORMAT:
        raise RunError(
            f"{path}: expected format {entries.FORMAT}, got {first.format}: made by another release"
        )
    joined: set[str] = set()
    for step in steps:
        worker = getattr(step.entry, "worker", None)
        if isinstance(step.entry, entries.Join):
            joined.add(step.entry.worker)
        elif worker is not None and worker not in joined:
            raise RunError(
                f"{path}:{step.index + 1}: {step.entry.kind} of {worker}, who has not joined: the log was edited"
            )
    if stopped and not any(isinstance(step.entry, entries.Stop) for step in steps):
        raise RunError(
            f"{path}: has no stop entry, though the job has stopped: the log was cut off or edited"
        )
