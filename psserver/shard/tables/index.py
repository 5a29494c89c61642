"""The index of a table: from keys to slots, by linear probing without displacement.

An entry never moves, so a reader needs no lock: what it found stays where it is. Growth makes another index, which
replaces this one in a single assignment. Empty places have slot -1; no key is reserved.
"""

from collections.abc import Callable

import numpy as np

from psserver.optimizers.row_kernels import RowKernels, Slots
from pswire.model.tables import Keys

SMALLEST = 1024
# An index is at most this full; every search ends at an empty place.
FULLEST = 0.75


class Index:
    """Places for keys and slots; their number is a power of two. One writer, any number of readers.

    `kernels` returns those to use now.
    """

    def __init__(self, kernels: Callable[[], RowKernels], places: int = SMALLEST) -> None:
        self._kernels = kernels
        self._keys = np.zeros(places, np.uint64)
        self._slots = np.full(places, -1, np.int32)
        self._count = 0

    @property
    def count(self) -> int:
        """The number of keys."""
        return self._count

    @property
    def load(self) -> float:
        """The part of places that are taken."""
        return self._count / self._slots.size

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes + self._slots.nbytes

    def find(self, keys: Keys) -> Slots:
        """Return the slot of each key, -1 where there is none."""
        found = np.empty(keys.size, np.int32)
        self._kernels().find(self._keys, self._slots, keys, found)
        return found

    def sorted(self) -> tuple[Keys, Slots]:
        """Return all keys, sorted, and their slots."""
        taken = np.flatnonzero(self._slots >= 0)
        keys = self._keys[taken]
        order = np.argsort(keys)
        return keys[order], self._slots[taken[order]]

    def without(self, gone: Slots) -> "Index":
        """Return another index that lacks the keys of these slots."""
        keys, slots = self.sorted()
        kept = ~np.isin(slots, gone)
        other = Index(self._kernels).with_room(int(np.count_nonzero(kept)))
        other.insert(keys[kept], slots[kept])
        return other

    def with_room(self, more: int) -> "Index":
        """Return this index if `more` keys fit, else a larger one with the same entries."""
        places = self._slots.size
        while self._count + more > FULLEST * places:
            places *= 2
        if places == self._slots.size:
            return self
        grown, taken = Index(self._kernels, places), self._slots >= 0
        grown.insert(self._keys[taken], self._slots[taken])
        return grown

    def insert(self, keys: Keys, slots: Slots) -> None:
        """Add keys, each once and none of them here. There must be room."""
        self._kernels().insert(self._keys, self._slots, keys, slots)
        self._count += keys.size
