"""From the part of a work unit that a grant names to its batches."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn, Protocol, runtime_checkable

from psworker.engine import UnitPart
from psworker.local import ReadAhead, TicketBatches
from psworker.work.units import Unit, WorkUnits

Open = Callable[[Unit], Iterable[Any]]
"""A unit's batches, in order."""


@runtime_checkable
class UnitTrainer(Protocol):
    """A trainer whose data comes in work units."""

    @property
    def work(self) -> WorkUnits | None:
        """What the data is dealt as; None where each worker has data of its own."""
        ...

    def unit_batches(self, worker_index: int, seed: int) -> Open:
        """From a unit to its batches. The call also gives this worker its own stream of random numbers."""
        ...


class UnitSource:
    """Keeps the unit open that a worker is in, so that the next part is read on from where it stands.

    `steps`: batches of a part. `seed`: the job's.
    """

    def __init__(self, work: WorkUnits, opened: Open, steps: int, seed: int) -> None:
        self._work, self._open = work, opened
        self._steps, self._seed = steps, seed
        self._unit: Unit | None = None
        self._data = ReadAhead(iter(()))
        # Batches of the unit that were read.
        self._read = 0
        self._taken: TicketBatches | None = None

    def of(self, part: UnitPart) -> TicketBatches | None:
        """The batches of a part; None when its unit has no such part.

        Raises JobError for a dataset that gives another number of batches than was declared.
        """
        first = part.part * self._steps
        if self._taken is not None:
            self._taken.pass_over()
        if self._must_open(part, first):
            self._unit = self._work.of(part.epoch, part.unit, self._seed)
            self._data = ReadAhead(self._numbered(self._unit))
        data = self._data
        while data.following is not None and data.following[0] < first:
            data.take()
        self._check(first)
        if data.following is None:
            self._taken = None
            return None
        self._taken = TicketBatches(data, self._steps)
        return self._taken

    def _must_open(self, part: UnitPart, first: int) -> bool:
        unit, following = self._unit, self._data.following
        if unit is None or (unit.epoch, unit.number) != (part.epoch, part.unit):
            return True
        return (self._read if following is None else following[0]) > first

    def _numbered(self, unit: Unit) -> Iterator[tuple[int, Any]]:
        self._read = 0
        for batch in self._open(unit):
            self._read += 1
            yield self._read - 1, batch

    def ends(self) -> bool:
        """The unit has nothing behind the part that was read. Raises JobError as `of`."""
        assert self._taken is not None and self._unit is not None
        if self._taken.more:
            expected = self._work.expected(self._unit)
            if expected and self._taken.last + 1 >= expected:
                self._refuse(f"more batches than the {expected} that were declared")
            return False
        self._check(self._taken.last + 1)
        return True

    def _check(self, first: int) -> None:
        """A unit whose length was declared has not ended before it."""
        assert self._unit is not None
        expected = self._work.expected(self._unit)
        if self._data.following is None and first < expected:
            self._refuse(f"{self._read} batches; {expected} were declared")

    def _refuse(self, what: str) -> NoReturn:
        # A simulated cluster, which computes no job, does not load what jobs need.
        from psworker.job.errors import JobError

        assert self._unit is not None
        unit = self._unit
        raise JobError(f"dataset(unit) for unit {unit.number} of epoch {unit.epoch} gives {what}")
