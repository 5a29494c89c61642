"""The rows of all tables with one width and one optimizer, which an update passes over once.

A row is one stretch of memory: its values, the optimizer's slots, its age. So an update waits for memory once per row.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from psserver.fast import ALONE, Backend, update_of
from psserver.fast.rows import KeptRows, Slots, Words, parts_of
from psserver.optimizers.rows import RowOptimizer, RowStep
from psserver.shard.tables.chunks import Chunks
from psserver.shard.tables.finder import Finder
from pswire.model.tables import Floats

Counts = NDArray[np.uint32]


class RowStore:
    """Values, the optimizer's slots and the age of each row. A slot belongs to one table for good.

    One thread at a time computes and writes; any number may gather meanwhile.
    """

    def __init__(self, dim: int, optimizer: RowOptimizer, backend: Backend = ALONE) -> None:
        self.dim, self.optimizer, self.backend = dim, optimizer, backend
        # For the tables whose rows these are.
        self.finder = Finder()
        # Slots 0 to count - 1 have been used; those in `_free` can be used again.
        self.count = 0
        self._free = np.zeros(0, np.int32)
        # Ends of the values, of each of the optimizer's slots, and of the age.
        widths = [dim, *(width or dim for width in optimizer.widths.values()), 2]
        self._rows = Chunks(tuple(accumulate(widths)))

    def take(self, number: int) -> Slots:
        """Return unused slots."""
        free, self._free = self._free[:number], self._free[number:]
        more = np.arange(self.count, self.count + number - free.size, dtype=np.int32)
        return np.concatenate([free, more])

    def give(self, slots: Slots) -> None:
        """Take slots back whose rows are gone. Readers of older versions lay undo records over what follows."""
        self._free = np.concatenate([self._free, slots])

    @property
    def row_bytes(self) -> int:
        """The memory of a row, without its place in an index."""
        return 4 * self._rows.ends[-1]

    def values(self, slots: Slots) -> Floats:
        """Return the rows of slots, [n, dim]; undefined for negative ones."""
        rows: Floats = self._rows.part(0, slots, np.empty((slots.size, self.dim), np.float32))
        return rows

    def ages(self, slots: Slots) -> Counts:
        """Return [n, 2]: the last version that changed each row, and how many did; 0 for negative slots."""
        ages: Counts = self._rows.part(self._rows.ends[-2], slots, np.zeros((slots.size, 2), np.uint32))
        return ages

    def whole(self, slots: Slots) -> "WholeRows":
        """Return all that the rows of slots have; negative slots have first values, and undefined `values`."""
        rows = self._as_rows(self._rows.gather(slots))
        absent = np.flatnonzero(slots < 0)
        if absent.size:
            for name, slot in rows.state.items():
                slot[absent] = self.optimizer.initial[name]
            rows.ages[absent] = 0
        return rows

    def _as_rows(self, words: Words) -> "WholeRows":
        values, *state, ages = parts_of(words, self._rows.ends)
        named = zip(self.optimizer.widths, state, strict=True)
        return WholeRows(
            words, values.view(np.float32), {name: slot.view(np.float32) for name, slot in named}, ages
        )

    def write(self, slots: Slots, values: Floats, rows: "WholeRows") -> None:
        """Write `values`, and `rows` except for its own, at different slots; those beyond `count` are new."""
        if not slots.size:
            return
        room = int(slots.max()) + 1
        self._rows.grow(room)
        self._rows.scatter(slots, values, rows.words)
        self.count = max(self.count, room)

    def advance(self, slots: Slots, gradients: Floats, saved: KeptRows, numbers: RowStep) -> Counts | None:
        """Update rows where they lie. Return how many elements of each row kept their old values; None if none did."""
        run, passed = update_of(self.optimizer.one_pass), self.optimizer.pass_numbers(numbers)
        return run(self._rows.memory, slots, gradients, saved, numbers.version + 1, passed)

    def make(self, values: Floats) -> Slots:
        """Add rows that no update has touched, and return their slots."""
        shape = len(values)
        state = {
            name: np.full((shape, width or self.dim), self.optimizer.initial[name], np.float32)
            for name, width in self.optimizer.widths.items()
        }
        return self.restore(values, state, np.zeros((shape, 2), np.uint32))

    def restore(self, values: Floats, state: Mapping[str, Floats], ages: Counts) -> Slots:
        """Add rows, and return their slots."""
        slots = self.take(len(values))
        rows = self._as_rows(np.empty(slots.size * self._rows.ends[-1], np.uint32))
        for name, slot in rows.state.items():
            slot[...] = state[name]
        rows.ages[...] = ages
        self.write(slots, values, rows)
        return slots


@dataclass(frozen=True, slots=True)
class WholeRows:
    """All that n rows have. `values`, `state` and `ages`, [n, width] each, are views of `words`."""

    words: Words
    values: Floats
    state: dict[str, Floats]
    ages: Counts
