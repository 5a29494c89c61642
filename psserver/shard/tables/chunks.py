"""A column of a table: one array per 65,536 rows, so that growth copies nothing."""

import numpy as np
from numpy.typing import NDArray

from psserver.optimizers import AnyArray

BITS = 16
ROWS = 1 << BITS


class Chunks:
    """Rows of `width` numbers of one dtype, by slot. One writer, any number of readers."""

    def __init__(self, width: int, dtype: type[np.generic] = np.float32) -> None:
        self.width, self.dtype = width, dtype
        self._chunks: list[AnyArray] = []

    @property
    def nbytes(self) -> int:
        return sum(chunk.nbytes for chunk in self._chunks)

    def grow(self, rows: int) -> None:
        """Make room for slots 0 to ``rows - 1``."""
        while len(self._chunks) * ROWS < rows:
            self._chunks.append(np.empty((ROWS, self.width), self.dtype))

    def gather(self, slots: NDArray[np.int32]) -> AnyArray:
        """Return the rows of slots, [n, width]."""
        out = np.empty((slots.size, self.width), self.dtype)
        for chunk, here in self._parts(slots):
            out[here] = chunk[slots[here] & (ROWS - 1)]
        return out

    def scatter(self, slots: NDArray[np.int32], rows: AnyArray) -> None:
        """Write rows [n, width] at different slots."""
        for chunk, here in self._parts(slots):
            chunk[slots[here] & (ROWS - 1)] = rows[here]

    def _parts(self, slots: NDArray[np.int32]) -> list[tuple[AnyArray, AnyArray | slice]]:
        if len(self._chunks) == 1:
            return [(self._chunks[0], slice(None))]
        of = slots >> BITS
        return [(self._chunks[each], np.flatnonzero(of == each)) for each in np.unique(of)]
