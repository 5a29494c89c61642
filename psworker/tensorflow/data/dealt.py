"""A job's data in work units: what it declares, and the batches of one unit."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from psworker.job import Job, JobError
from psworker.job.errors import blame
from psworker.tensorflow.data.batches import numbered_batches
from psworker.work import Unit, WorkUnits


def declared_work(job: Job) -> WorkUnits | None:
    """The job's `work`; None where each worker has data of its own. Raises JobError."""
    with blame(f"work of job {type(job).__name__}"):
        found: object = job.work
    if found is None or isinstance(found, WorkUnits):
        return found
    raise JobError(
        f"work of job {type(job).__name__}: expected a psworker.WorkUnits, got {type(found).__name__}"
    )


def unit_batches(job: Job, unit: Unit) -> Iterator[Any]:
    """The batches of one unit, as the job's `dataset(self, unit)` gives them. Raises JobError."""
    dataset: Any = job.dataset
    try:
        inspect.signature(dataset).bind(unit)
    except TypeError:
        raise JobError(
            f"job {type(job).__name__} declares work units: expected dataset(self, unit), got "
            f"dataset(self, {', '.join(inspect.signature(dataset).parameters)})"
        ) from None
    with blame(f"dataset() of job {type(job).__name__}"):
        found = dataset(unit)
    return (batch for _, batch in numbered_batches(found, epochs=1, skip=0))
