"""Data as work units, on the worker's side: what a unit consists of, and the batches of a part that was dealt.

The division is the same on every worker, so a unit's number identifies its data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Literal, NoReturn, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from psworker.engine import UnitPart
from psworker.local import ReadAhead, TicketBatches

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Unit:
    """One work unit in one epoch, for which a job's ``dataset(self, unit)`` returns the batches.

    `indices`: the numbers of its samples, in the epoch's order; for a file, or anything else that is a whole unit, its
    one number, which is also `index`. `file`: its name, for units of files.
    """

    epoch: int
    number: int
    indices: Indices
    batch_size: int = 0
    file: str = ""

    @property
    def index(self) -> int:
        """The number of the file, or of whatever a unit is; of samples, the first one."""
        return int(self.indices[0])

    def batches(self, *arrays: Any) -> Iterator[Any]:
        """Yield the unit's samples of `arrays` (numpy arrays, or what an array of indices can index) as batches.

        A batch is a tuple with one array for each, or the array itself if there is a single one.
        """
        size = self.batch_size or len(self.indices)
        for start in range(0, len(self.indices), size):
            chosen = self.indices[start : start + size]
            batch = tuple(array[chosen] for array in arrays)
            yield batch if len(batch) != 1 else batch[0]


@dataclass(frozen=True, kw_only=True)
class WorkUnits:
    """A job's data as units that the coordinator deals to workers on demand. Give one of the first three.

    `samples`: their number. A unit is `unit` of them, by default one batch of `batch_size`.
    `files`: a unit is a file, with as many batches as its dataset yields.
    `units`: their number, for anything that can be numbered, of `batches` batches each (0: as many as the dataset
    yields).

    `shuffle`: True draws a new order of samples, files or units in each epoch; "units" keeps neighbouring samples
    together and draws the order of the units; False keeps the order. The order is drawn from `seed`, by default the
    job's. `apart`: deal no unit of an epoch before all of the previous epoch have counted; workers without one wait.
    Raises ValueError for numbers that make no sense.
    """

    samples: int = 0
    files: Sequence[str] = ()
    units: int = 0
    batch_size: int = 32
    unit: int = 0
    batches: int = 0
    shuffle: bool | Literal["units"] = True
    seed: int | None = None
    apart: bool = False
    _orders: dict[tuple[int, int], Indices] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "files", tuple(str(name) for name in self.files))
        given = [name for name in ("samples", "files", "units") if getattr(self, name)]
        if len(given) != 1:
            raise ValueError(
                f"WorkUnits: expected one of samples=, files= and units=, got {' and '.join(given) or 'none'}"
            )
        for name, least in (("samples", 0), ("units", 0), ("batch_size", 1), ("unit", 0), ("batches", 0)):
            found = getattr(self, name)
            if isinstance(found, bool) or not isinstance(found, int | np.integer) or found < least:
                raise ValueError(f"WorkUnits: expected {name} = a whole number from {least}, got {found!r}")
        if self.shuffle not in (True, False, "units"):
            raise ValueError(f'WorkUnits: expected shuffle = True, False or "units", got {self.shuffle!r}')

    @property
    def count(self) -> int:
        """Units in an epoch."""
        if self.samples:
            return -(-self.samples // self.size)
        return self.units or len(self.files)

    @property
    def size(self) -> int:
        """Samples in a unit; 1 if a unit is one thing."""
        return (self.unit or self.batch_size) if self.samples else 1

    @property
    def batches_each(self) -> int:
        """Batches of a unit; 0 if only the dataset shows it."""
        return -(-self.size // self.batch_size) if self.samples else self.batches

    @property
    def batches_last(self) -> int:
        """Batches of an epoch's last unit if it has fewer than the others; else 0."""
        last = -(-(self.samples % self.size) // self.batch_size) if self.samples else 0
        return last if last < self.batches_each and self.count > 1 else 0

    def of(self, epoch: int, number: int, seed: int) -> Unit:
        """Return that unit. `seed`: the job's."""
        order = self._order(epoch, seed if self.seed is None else self.seed)
        size = self.size
        if self.samples and self.shuffle is True:
            chosen = order[number * size : (number + 1) * size]
        else:
            place = int(order[number])
            total = self.samples or self.count
            chosen = np.arange(place * size, min((place + 1) * size, total), dtype=np.int64)
        name = self.files[int(chosen[0])] if self.files else ""
        return Unit(epoch, number, chosen, self.batch_size if self.samples else 0, name)

    def expected(self, unit: Unit) -> int:
        """Return the batches of `unit`; 0 if only the dataset shows it."""
        return -(-len(unit.indices) // self.batch_size) if self.samples else self.batches

    def _order(self, epoch: int, seed: int) -> Indices:
        """Return the order of samples or units. The newest two orders are cached, because epochs overlap."""
        found = self._orders.get((epoch, seed))
        if found is None:
            total = self.samples if self.samples and self.shuffle is True else self.count
            found = np.arange(total, dtype=np.int64)
            if self.shuffle:
                # A unit with fewer samples is the last of every epoch: the servers know its length by its number.
                whole = self.samples // self.size if self.samples and self.shuffle == "units" else total
                np.random.default_rng([seed, epoch]).shuffle(found[:whole])
            while len(self._orders) > 1:
                del self._orders[next(iter(self._orders))]
            self._orders[epoch, seed] = found
        return found

    def __str__(self) -> str:
        """Describe everything that two workers must agree on."""
        if self.samples:
            what = f"samples={self.samples} unit={self.size} batch_size={self.batch_size}"
        elif self.files:
            # Folders may differ from machine to machine.
            names = "\n".join(PurePath(name).name for name in self.files)
            what = f"files={len(self.files)} ({hashlib.blake2b(names.encode(), digest_size=8).hexdigest()})"
        else:
            what = f"units={self.units} batches={self.batches}"
        seed = "" if self.seed is None else f" seed={self.seed}"
        return f"{what} shuffle={self.shuffle}{seed}"


# From the part of a unit that a grant names to its batches

Open = Callable[[Unit], Iterable[Any]]
"""Returns a unit's batches, in order."""


@runtime_checkable
class UnitTrainer(Protocol):
    """A trainer whose data comes in work units."""

    @property
    def work(self) -> WorkUnits | None:
        """The units that its data is dealt in; None if each worker has data of its own."""
        ...

    def unit_batches(self, worker_index: int, seed: int) -> Open:
        """Return the function from a unit to its batches, and give this worker a random stream of its own."""
        ...


class UnitSource:
    """Batches of dealt parts. Keeps the worker's present unit open, to read its next part without starting again.

    `steps`: batches of a part. `seed`: the job's.
    """

    def __init__(self, work: WorkUnits, opened: Open, steps: int, seed: int) -> None:
        self._work, self._open = work, opened
        self._steps, self._seed = steps, seed
        self._unit: Unit | None = None
        self._data = ReadAhead(iter(()))
        # Batches that were read from the unit.
        self._read = 0
        self._taken: TicketBatches | None = None

    def of(self, part: UnitPart) -> TicketBatches | None:
        """Return the batches of a part; None when its unit has no such part.

        Raises JobError for a dataset that yields another number of batches than declared.
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

    def ends(self) -> bool:
        """Whether the part that was read is the last of its unit. Raises JobError as `of`."""
        assert self._taken is not None and self._unit is not None
        if self._taken.more:
            expected = self._work.expected(self._unit)
            if expected and self._taken.last + 1 >= expected:
                self._refuse(f"more batches than the {expected} that were declared")
            return False
        self._check(self._taken.last + 1)
        return True

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

    def _check(self, first: int) -> None:
        """Refuse a unit that ended before `first`, and before its declared length."""
        assert self._unit is not None
        expected = self._work.expected(self._unit)
        if self._data.following is None and first < expected:
            self._refuse(f"{self._read} batches; {expected} were declared")

    def _refuse(self, what: str) -> NoReturn:
        # Imported late: a simulated cluster, which runs no job, does not load what jobs need.
        from psworker.job.errors import JobError

        assert self._unit is not None
        unit = self._unit
        raise JobError(f"dataset(unit) for unit {unit.number} of epoch {unit.epoch} gives {what}")
