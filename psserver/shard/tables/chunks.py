"""The memory of rows: chunks of equal size, so that growth copies nothing."""

import numpy as np

from psserver.fast import AnyArray
from psserver.fast import rows as kernels
from psserver.fast.rows import RowMemory, Slots, Words

# Words of a chunk, at most. Memory that no row has touched yet costs nothing.
_CHUNK = 1 << 23


class Chunks:
    """Rows by slot, each of several parts. One writer, any number of readers.

    `ends`: the word behind each part; words have 32 bits.
    """

    def __init__(self, ends: tuple[int, ...]) -> None:
        self._memory = RowMemory((), np.zeros(0, np.int64), ends, (_CHUNK // ends[-1]).bit_length() - 1)

    @property
    def memory(self) -> RowMemory:
        """The rows, for a kernel."""
        return self._memory

    @property
    def ends(self) -> tuple[int, ...]:
        return self._memory.ends

    def grow(self, rows: int) -> None:
        """Make room for slots 0 to ``rows - 1``."""
        chunks, bits = list(self._memory.chunks), self._memory.bits
        while len(chunks) << bits < rows:
            chunks.append(np.empty((1 << bits, self._memory.words), np.uint32))
        if len(chunks) > len(self._memory.chunks):
            addresses = np.array([chunk.ctypes.data for chunk in chunks], np.int64)
            self._memory = RowMemory(tuple(chunks), addresses, self.ends, bits)

    def part(self, first: int, slots: Slots, out: AnyArray) -> AnyArray:
        """Copy words of each row, from word `first`, to `out`, [n, width]; rows of negative slots stay as they are."""
        kernels.gather(self._memory, first, slots, out.view(np.uint32))
        return out

    def gather(self, slots: Slots) -> Words:
        """Return whole rows, flat, one part behind the other (`parts_of`); undefined for negative slots."""
        rows = np.empty(slots.size * self._memory.words, np.uint32)
        kernels.gather_parts(self._memory, slots, rows)
        return rows

    def scatter(self, slots: Slots, values: AnyArray, rows: Words) -> None:
        """Write rows at different slots: the first part from `values`, [n, width], the others from `rows`."""
        words = np.ascontiguousarray(values).view(np.uint32)
        kernels.scatter_parts(self._memory, slots, words, rows)
