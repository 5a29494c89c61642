"""Kernels of sparse tables: search and growth of an index, and rows to and from their places.

Each exists twice, in numpy here and compiled in `psserver.fast.row_kernels`; both give the same result. Rows are arrays
of 32-bit words, [n, words], whatever they mean.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]
Slots = NDArray[np.int32]
Words = NDArray[np.uint32]


class RowKernels(Protocol):
    """The kernels. An index is two arrays of a power of two places: keys, and slots (-1: empty)."""

    def find(self, places: Keys, slots: Slots, keys: Keys, out: Slots) -> None:
        """Write the slot of each key, -1 where there is none. The key's lower bits are its first place."""

    def insert(self, places: Keys, slots: Slots, keys: Keys, new: Slots) -> None:
        """Add keys, each once and none of them there, with their slots. There must be room.

        A reader in another thread looks at a slot before its key, so the key is written first.
        """

    def gather(self, chunk: Words, first: int, slots: Slots, out: Words) -> None:
        """Copy the rows of slots that lie in `chunk`, whose first slot is `first`; leave others in `out` alone."""

    def scatter(self, chunk: Words, first: int, slots: Slots, rows: Words) -> None:
        """Copy rows to those of their different slots that lie in `chunk`."""


class NumpyRowKernels:
    """The kernels in numpy."""

    def find(self, places: Keys, slots: Slots, keys: Keys, out: Slots) -> None:
        out[:] = -1
        waiting, at = np.arange(keys.size), _first(places, keys)
        while waiting.size:
            found = slots[at]
            hit = (found >= 0) & (places[at] == keys[waiting])
            out[waiting[hit]] = found[hit]
            on = (found >= 0) & ~hit
            waiting, at = waiting[on], (at[on] + 1) & (slots.size - 1)

    def insert(self, places: Keys, slots: Slots, keys: Keys, new: Slots) -> None:
        waiting, at = np.arange(keys.size), _first(places, keys)
        while waiting.size:
            free = np.flatnonzero(slots[at] < 0)
            # Of several keys that want one place, the first gets it.
            taken, first = np.unique(at[free], return_index=True)
            winners = free[first]
            places[taken] = keys[waiting[winners]]
            slots[taken] = new[waiting[winners]]
            on = np.ones(waiting.size, bool)
            on[winners] = False
            waiting, at = waiting[on], (at[on] + 1) & (slots.size - 1)

    def gather(self, chunk: Words, first: int, slots: Slots, out: Words) -> None:
        here = np.flatnonzero((slots >= first) & (slots < first + len(chunk)))
        out[here] = chunk[slots[here] - first]

    def scatter(self, chunk: Words, first: int, slots: Slots, rows: Words) -> None:
        here = np.flatnonzero((slots >= first) & (slots < first + len(chunk)))
        chunk[slots[here] - first] = rows[here]


def _first(places: Keys, keys: Keys) -> NDArray[np.int64]:
    return (keys & np.uint64(places.size - 1)).astype(np.int64)


NUMPY_ROWS = NumpyRowKernels()
