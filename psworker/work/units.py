"""How a job's data is divided into work units. The same on every worker, so a unit's number says which data it is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Unit:
    """One work unit in one epoch: what a job's ``dataset(self, unit)`` is asked for.

    `indices`: the numbers of its samples, in the epoch's order; of a file or anything else that is a whole unit, the
    one number of it, which `index` is, too. `file`: its name, for units of files.
    """

    epoch: int
    number: int
    indices: Indices
    batch_size: int = 0
    file: str = ""

    @property
    def index(self) -> int:
        """The number of the file, or of whatever one unit is; of samples, the first one."""
        return int(self.indices[0])

    def batches(self, *arrays: Any) -> Iterator[Any]:
        """The unit's samples of `arrays` (numpy arrays, or what takes an array of indices), in batches of `batch_size`.

        A batch is a tuple, one array for each; of a single array, that array.
        """
        size = self.batch_size or len(self.indices)
        for start in range(0, len(self.indices), size):
            chosen = self.indices[start : start + size]
            batch = tuple(array[chosen] for array in arrays)
            yield batch if len(batch) != 1 else batch[0]


@dataclass(frozen=True, kw_only=True)
class WorkUnits:
    """A job's data as units that the coordinator deals to workers as they come. One of three:

    `samples`: how many there are. A unit is `unit` of them, by default one batch of `batch_size`.
    `files`: a unit is a file, of as many batches as its dataset gives.
    `units`: so many of anything that has a number, of `batches` batches each (0: as many as the dataset gives).

    `shuffle`: True draws a new order in each epoch, of samples, files or units; "units" leaves samples together that
    stand together and draws the order of the units; False keeps the order. It is drawn from `seed`, by default the
    job's. `apart`: no unit of an epoch is dealt before all of the epoch before have counted; who has none waits.
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
        """Samples in a unit; 1 where a unit is one thing."""
        return (self.unit or self.batch_size) if self.samples else 1

    @property
    def batches_each(self) -> int:
        """Batches of a unit; 0 where only the dataset shows it."""
        return -(-self.size // self.batch_size) if self.samples else self.batches

    def of(self, epoch: int, number: int, seed: int) -> Unit:
        """That unit. `seed`: the job's."""
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
        """Batches of `unit`; 0 where only the dataset shows it."""
        return -(-len(unit.indices) // self.batch_size) if self.samples else self.batches

    def _order(self, epoch: int, seed: int) -> Indices:
        """Of samples, or of units. The newest two are kept: epochs overlap."""
        found = self._orders.get((epoch, seed))
        if found is None:
            total = self.samples if self.samples and self.shuffle is True else self.count
            found = np.arange(total, dtype=np.int64)
            if self.shuffle:
                np.random.default_rng([seed, epoch]).shuffle(found)
            while len(self._orders) > 1:
                del self._orders[next(iter(self._orders))]
            self._orders[epoch, seed] = found
        return found

    def __str__(self) -> str:
        """What two workers must agree on."""
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
