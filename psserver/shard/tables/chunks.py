"""A column of a table: a few arrays, each as large as all before it, so that growth copies nothing."""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from psserver.optimizers import AnyArray
from psserver.optimizers.row_kernels import RowKernels, Slots, Words

# Rows of the first chunk. Memory that no row has touched yet costs nothing.
ROWS = 1 << 16


class Chunks:
    """Rows of `width` numbers of one dtype, by slot. One writer, any number of readers.

    `kernels` returns those to use now.
    """

    def __init__(
        self, width: int, kernels: Callable[[], RowKernels], dtype: type[np.generic] = np.float32
    ) -> None:
        self.width, self.dtype = width, dtype
        self._kernels = kernels
        self._chunks: list[Words] = []
        self._words = width * np.dtype(dtype).itemsize // 4

    @property
    def row_bytes(self) -> int:
        """The memory of a row."""
        return 4 * self._words

    def grow(self, rows: int) -> None:
        """Make room for slots 0 to ``rows - 1``."""
        while (room := sum(map(len, self._chunks))) < rows:
            self._chunks.append(np.empty((max(room, ROWS), self._words), np.uint32))

    def gather(self, slots: Slots, out: AnyArray | None = None) -> AnyArray:
        """Return the rows of slots, [n, width]; in `out`, rows of negative slots stay as they are."""
        if out is None:
            out = np.empty((slots.size, self.width), self.dtype)
        for first, chunk in self._parts():
            self._kernels().gather(chunk, first, slots, self._as_words(out))
        return out

    def scatter(self, slots: Slots, rows: AnyArray) -> None:
        """Write rows [n, width] at different slots."""
        words = self._as_words(np.ascontiguousarray(rows))
        for first, chunk in self._parts():
            self._kernels().scatter(chunk, first, slots, words)

    def _parts(self) -> Iterator[tuple[int, Words]]:
        first = 0
        for chunk in self._chunks:
            yield first, chunk
            first += len(chunk)

    def _as_words(self, rows: AnyArray) -> NDArray[np.uint32]:
        return rows.view(np.uint32).reshape(len(rows), self._words)
