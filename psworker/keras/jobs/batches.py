"""A worker's batches, numbered over all epochs, from whatever a job's `dataset` returned."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import keras

from psworker.job import Job
from psworker.job.errors import JobError, blame, in_words
from psworker.work import Unit, WorkUnits


@dataclass(frozen=True)
class BatchGroup:
    """Several batches of one contribution: the mean of their gradients, all at the same weights."""

    batches: tuple[Any, ...]


def numbered_batches(
    dataset: Any,
    epochs: int,
    skip: int,
    begun: Callable[[int], object] = int,
    ended: Callable[[int, int], object] = max,
) -> Iterator[tuple[int, Any]]:
    """Yield (number, batch) from number `skip` on; numbers count from 0 over all epochs.

    `dataset` is an iterable of batches (a `tf.data.Dataset`, say) or a function of the epoch that returns one.
    `begun(epoch)` is called at the beginning of each epoch, `ended(epochs, batches)` at its end, with what was read so
    far. Batches before `skip`, which an earlier life of this worker has committed, are read and thrown away. Raises
    JobError when the user's code raises, when `dataset` is neither, and when it can be read only once although there
    are more epochs.
    """
    number = 0
    for epoch in range(epochs):
        begun(epoch)
        for batch in _one_epoch(dataset, epoch, epochs):
            if number >= skip:
                yield number, batch
            number += 1
        ended(epoch + 1, number)


def known_length(dataset: Any) -> int:
    """Return the number of batches of an epoch, if the dataset knows it; else 0."""
    try:
        return len(dataset)
    except TypeError:
        # No such function, or tf.data does not know, or knows that there is no end.
        return 0


def grouped_batches(
    dataset: Any,
    epochs: int,
    skip: int,
    every: int,
    begun: Callable[[int], object] = int,
    ended: Callable[[int, int], object] = max,
) -> Iterator[tuple[int, Any]]:
    """Yield what `numbered_batches` yields; with `every` above 1, groups of `every` batches, numbered as groups.

    A group may reach into the next epoch. Batches that are left at the end make no group, and are not used, as in
    Keras. Raises JobError.
    """
    batches = numbered_batches(dataset, epochs, skip * every, begun, ended)
    if every == 1:
        yield from batches
        return
    while len(group := [batch for _, batch in islice(batches, every)]) == every:
        yield skip, BatchGroup(tuple(group))
        skip += 1


def _one_epoch(dataset: Any, epoch: int, epochs: int) -> Iterator[Any]:
    with blame("the job's dataset"):
        batches = dataset if hasattr(dataset, "__iter__") or not callable(dataset) else dataset(epoch)
        if not hasattr(batches, "__iter__"):
            raise JobError(
                "the job's dataset must be an iterable of batches or a function of the epoch "
                f"that returns one, got {type(batches).__name__}"
            )
        iterator = iter(batches)
    if iterator is dataset and epochs > 1:
        raise JobError(
            f"the job's dataset is a {type(dataset).__name__}, which can be read once, but there are "
            f"{epochs} epochs: return a list, a tf.data.Dataset, or a function of the epoch"
        )
    while True:
        with blame("the job's dataset"):
            try:
                batch = next(iterator)
            except StopIteration:
                return
        yield batch


def declared_work(job: Job) -> WorkUnits | None:
    """Look up the job's `work`; None where each worker has data of its own. Raises JobError."""
    with blame(f"work of job {type(job).__name__}"):
        found: object = job.work
    if found is None or isinstance(found, WorkUnits):
        return found
    raise JobError(
        f"work of job {type(job).__name__}: expected a psworker.WorkUnits, got {type(found).__name__}"
    )


def unit_batches(job: Job, unit: Unit) -> Iterator[Any]:
    """Read the batches of one unit by the job's `dataset(self, unit)`. Raises JobError."""
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


def built(job: Job, model: Any, seed: int) -> Any:
    """Build the model if need be, on the data of a single worker: only its shapes matter.

    Raises JobError when there is no batch, or the model cannot be called on it.
    """
    if not isinstance(model, keras.Model) or model.built:
        return model
    work = declared_work(job)
    if work is None:
        _, batch = next(numbered_batches(job.dataset(0, 1, seed), 1, 0), (0, None))
    else:
        batch = next(unit_batches(job, work.of(0, 0, seed)), None)
    if batch is None:
        asked = f"dataset(0, 1, {seed})" if work is None else "its first unit"
        raise JobError(
            f"the dataset of job {type(job).__name__} is empty ({asked} has no batch), and the Keras model "
            f"{model.name!r} is to be built from its first batch"
        )
    x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
    try:
        model(x)
    except Exception as error:
        raise JobError(
            f"the Keras model {model.name!r} is not built yet, and calling it on the first batch raised "
            f"{in_words(error)}: begin it with keras.Input(shape), or call model.build(shape) in model()"
        ) from error
    return model
