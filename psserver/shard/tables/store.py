"""The rows of all tables with one width and one optimizer: columns by slot, which an update passes over once."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from psserver.optimizers import NUMPY, AnyArray, Backend
from psserver.optimizers.row_kernels import RowKernels, Slots
from psserver.optimizers.rows import RowOptimizer, RowStep
from psserver.shard import arithmetic
from psserver.shard.tables.chunks import Chunks
from pswire.model.tables import Floats

Counts = NDArray[np.uint32]


class RowStore:
    """Columns of rows: values, the optimizer's slots, and ages. A slot belongs to one table for good.

    One thread at a time computes and writes; any number may gather meanwhile.
    """

    def __init__(self, dim: int, optimizer: RowOptimizer, backend: Backend = NUMPY) -> None:
        self.dim, self.optimizer, self.backend = dim, optimizer, backend

        def kernels() -> RowKernels:
            return backend.rows

        # The number of slots in use.
        self.count = 0
        self._values = Chunks(dim, kernels)
        self._state = {name: Chunks(width or dim, kernels) for name, width in optimizer.widths.items()}
        # Of each row the last version that changed it, and how many did.
        self._ages = Chunks(2, kernels, np.uint32)

    @property
    def _columns(self) -> list[Chunks]:
        return [self._values, *self._state.values(), self._ages]

    @property
    def row_bytes(self) -> int:
        """The memory of a row, without its place in an index."""
        return sum(column.row_bytes for column in self._columns)

    def values(self, slots: Slots) -> Floats:
        """Return the rows of slots, [n, dim]; undefined for negative ones."""
        rows: Floats = self._values.gather(slots)
        return rows

    def ages(self, slots: Slots) -> Counts:
        """Return [n, 2]: the last version that changed each row, and how many did; 0 for negative slots."""
        ages: Counts = self._kept(self._ages, slots, 0)
        return ages

    def state(self, slots: Slots) -> dict[str, Floats]:
        """Return the optimizer's slots, [n, width] by name; first values for negative slots."""
        return {
            name: self._kept(column, slots, self.optimizer.initial[name])
            for name, column in self._state.items()
        }

    def _kept(self, column: Chunks, slots: Slots, absent: float) -> AnyArray:
        return column.gather(slots, np.full((slots.size, column.width), absent, column.dtype))

    def step(
        self, before: Floats, gradients: Floats, state: Mapping[str, Floats], counts: Counts, numbers: RowStep
    ) -> tuple[Floats, float]:
        """Return the rows after an update, and the largest magnitude in them and in `state`, which advances.

        `gradients` are overwritten.
        """
        after = before
        if len(before):
            after = self.optimizer.step(before, gradients, state, counts, numbers, self.backend)
        largest = max(arithmetic.largest(each.reshape(-1)) for each in (after, *state.values()))
        return after, largest

    def write(
        self, slots: Slots, values: Floats, state: Mapping[str, Floats], touched: Counts, counts: Counts
    ) -> None:
        """Write rows at different slots, of which those beyond `count` are new."""
        if not slots.size:
            return
        room = int(slots.max()) + 1
        for column in self._columns:
            column.grow(room)
        self._values.scatter(slots, values)
        for name, column in self._state.items():
            column.scatter(slots, state[name])
        self._ages.scatter(slots, np.stack([touched, counts], axis=1))
        self.count = max(self.count, room)


def joined(arrays: Sequence[AnyArray]) -> AnyArray:
    """Return the arrays one behind the other, without a copy of a single one."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
