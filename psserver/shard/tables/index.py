"""The index of a table: from keys to slots, by linear probing without displacement.

An entry never moves, so a reader needs no lock: what it found stays where it is. Growth makes another index, which
replaces this one in a single assignment. Empty places have slot -1; no key is reserved.
"""

import numpy as np
from numpy.typing import NDArray

from pswire.model.tables import Keys

Slots = NDArray[np.int32]

SMALLEST = 1024
# An index is at most this full; every search ends at an empty place.
FULLEST = 0.75


class Index:
    """Places for keys and slots; their number is a power of two. One writer, any number of readers."""

    def __init__(self, places: int = SMALLEST) -> None:
        self._keys = np.zeros(places, np.uint64)
        self._slots = np.full(places, -1, np.int32)
        self._count = 0

    @property
    def load(self) -> float:
        """The part of places that are taken."""
        return self._count / self._slots.size

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes + self._slots.nbytes

    def find(self, keys: Keys) -> Slots:
        """Return the slot of each key, -1 where there is none."""
        found = np.full(keys.size, -1, np.int32)
        waiting, places = np.arange(keys.size), self._first(keys)
        while waiting.size:
            slots = self._slots[places]
            hit = (slots >= 0) & (self._keys[places] == keys[waiting])
            found[waiting[hit]] = slots[hit]
            on = (slots >= 0) & ~hit
            waiting, places = waiting[on], (places[on] + 1) & (self._slots.size - 1)
        return found

    def with_room(self, more: int) -> "Index":
        """Return this index if `more` keys fit, else a larger one with the same entries."""
        places = self._slots.size
        while self._count + more > FULLEST * places:
            places *= 2
        if places == self._slots.size:
            return self
        grown, taken = Index(places), self._slots >= 0
        grown.insert(self._keys[taken], self._slots[taken])
        return grown

    def insert(self, keys: Keys, slots: Slots) -> None:
        """Add keys, each once and none of them here. There must be room."""
        waiting, places = np.arange(keys.size), self._first(keys)
        while waiting.size:
            free = np.flatnonzero(self._slots[places] < 0)
            # Of several keys that want one place, the first gets it.
            taken, first = np.unique(places[free], return_index=True)
            winners = free[first]
            # A reader looks at the slot first: once it is there, so is the key.
            self._keys[taken] = keys[waiting[winners]]
            self._slots[taken] = slots[waiting[winners]]
            on = np.ones(waiting.size, bool)
            on[winners] = False
            waiting, places = waiting[on], (places[on] + 1) & (self._slots.size - 1)
        self._count += keys.size

    def _first(self, keys: Keys) -> NDArray[np.int64]:
        return (keys & np.uint64(self._slots.size - 1)).astype(np.int64)
