"""A worker's batches, numbered over all epochs, from whatever a job's `dataset` returned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from psworker.job.errors import JobError, blame
from psworker.tensorflow.step import Group


def numbered_batches(
    dataset: Any,
    epochs: int,
    skip: int,
    begun: Callable[[int], object] = int,
    ended: Callable[[int, int], object] = max,
) -> Iterator[tuple[int, Any]]:
    """(number, batch) from number `skip` on; numbers count from 0 over all epochs.

    `dataset` is an iterable of batches (a `tf.data.Dataset`, say) or a function
    of the epoch that returns one. `begun` is told of each epoch as it begins, `ended` how many epochs have ended, with
    how many batches. The
    batches before `skip`, which an earlier life of this worker has committed,
    are read and thrown away. Raises
    JobError when the user's code raises, when `dataset` is neither, and when
    it can be read only once although there are more epochs.
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
    """Batches of an epoch, where the dataset knows; else 0."""
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
    """As `numbered_batches`; with `every` above 1, groups of so many, numbered as groups.

    A group may reach into the next epoch; batches that are left at the end are
    no group and are not used, as in Keras. Raises JobError.
    """
    batches = numbered_batches(dataset, epochs, skip * every, begun, ended)
    if every == 1:
        yield from batches
        return
    while len(group := [batch for _, batch in islice(batches, every)]) == every:
        yield skip, Group(tuple(group))
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
