"""The decision log of a run as records."""

from collections.abc import Sequence

from pslab.runs.fold import LogState
from pslab.runs.folder import Run, RunError
from psserver.coordinator import Record
from psserver.decisions import entries


def read_records(run: Run) -> list[Record]:
    """Return the whole log. Raises RunError, which names the line, if one is unreadable or out of place.

    The log of a run without a summary, which was cut off or is still running, is read up to its last whole line.
    """
    path, records, joined = run.log, list[Record](), set[str]()
    for read in run.decisions():
        place, fact = f"{path}:{read.line}", read.fact
        if read.i != len(records):
            raise RunError(f"{place}: expected entry {len(records)}, got {read.i}: the log was edited")
        if not records and not isinstance(fact, entries.Job):
            break
        worker = getattr(fact, "worker", None)
        if isinstance(fact, entries.Join):
            joined.add(fact.worker)
        elif worker is not None and worker not in joined:
            raise RunError(f"{place}: {fact.kind} of {worker}, who has not joined: the log was edited")
        records.append(Record(read.i, read.t, fact))
    if not records:
        raise RunError(f"{path}: expected a job entry first: the log is empty or was edited")
    if run.stopped and not any(isinstance(record.entry, entries.Stop) for record in records):
        raise RunError(
            f"{path}: has no stop entry, though the job has stopped: the log was cut off or edited"
        )
    return records


def job_of(records: Sequence[Record]) -> entries.Job:
    """Return entry 0 of a log."""
    job = records[0].entry
    assert isinstance(job, entries.Job)
    return job


def model_of(records: Sequence[Record]) -> entries.Model:
    """Return the model that a log settles; one without a name or an optimizer if it ends before."""
    found = (each.entry for each in records if isinstance(each.entry, entries.Model))
    return next(found, entries.Model("", {}))


def servers_of(records: Sequence[Record]) -> int:
    """Return the number of servers at the end: a job may go on with another number."""
    job = LogState.of((record.entry, record.t) for record in records).job
    assert job is not None
    return job.servers
