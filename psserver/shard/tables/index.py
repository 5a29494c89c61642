"""The index of a table: from keys to slots, by linear probing without displacement.

An entry never moves, so a reader needs no lock: what it found stays where it is. A part of the index grows by being
copied to a larger one, and all parts that an insertion makes larger are replaced in a single assignment. A small index
is one part. A large one has a part for each bucket, which grow one by one, each at its own time: so no insertion has to
copy much. No key is reserved.
"""

import numpy as np
from numpy.typing import NDArray

from psserver.fast import rows as kernels
from psserver.fast.rows import SINGLE, IndexPlaces, Slots, Words
from pswire.model.tables import BUCKETS, Keys, bucket

Buckets = NDArray[np.bool_]
"""Of all buckets, which are chosen."""
# Places of a part that has a key, at least.
SMALLEST = 16
# A part is at most this full; every search ends at an empty place.
FULLEST = 0.75
_PLACE_BYTES = 12


class Index:
    """Places for keys and slots. One writer, any number of readers.

    `single`: the most places of one part for all keys. `places`: as of now.
    """

    def __init__(self, single: int = SINGLE) -> None:
        self._single = single
        self.places = _without_keys(1)
        # Keys in each part, and places in all.
        self._counts, self._total = np.zeros(1, np.int64), 0
        self.count = 0

    @property
    def nbytes(self) -> int:
        places = self.places
        return self._total * _PLACE_BYTES + places.addresses.nbytes + places.bits.nbytes

    def find(self, keys: Keys) -> Slots:
        """Return the slot of each key, -1 where there is none."""
        found = np.empty(keys.size, np.int32)
        kernels.find(self.places, keys, found)
        return found

    def sorted(self, buckets: Buckets | None = None) -> tuple[Keys, Slots]:
        """Return all keys, sorted, and their slots; or those in some `buckets`, of which each is chosen or not."""
        keys, slots = np.empty(self.count, np.uint64), np.empty(self.count, np.int32)
        at, several = 0, len(self._counts) > 1
        held = self._counts > 0
        for k in np.flatnonzero(held & buckets if several and buckets is not None else held).tolist():
            part = self.places.parts[k]
            taken = part[part[:, 2].view(np.int32) >= 0]
            own = np.ascontiguousarray(taken[:, :2]).view(np.uint64)[:, 0]
            if not several and buckets is not None:
                chosen = buckets[bucket(own)]
                taken, own = taken[chosen], own[chosen]
            order = np.argsort(own)
            keys[at : at + own.size] = own[order]
            slots[at : at + own.size] = taken[order, 2].view(np.int32)
            at += own.size
        return keys[:at], slots[:at]

    def within(self, start: int, stop: int) -> tuple[Keys, Slots]:
        """Return the keys in buckets [start, stop), sorted, and their slots. Others may insert and remove meanwhile."""
        parts = self.places.parts
        several = len(parts) > 1
        # A reader looks at a slot before its key.
        taken = [part[part[:, 2].view(np.int32) >= 0] for part in (parts[start:stop] if several else parts)]
        whole = np.concatenate(taken)
        keys, slots = np.ascontiguousarray(whole[:, :2]).view(np.uint64)[:, 0], whole[:, 2].view(np.int32)
        if not several:
            own = bucket(keys)
            chosen = (own >= start) & (own < stop)
            keys, slots = keys[chosen], slots[chosen]
        order = np.argsort(keys)
        return keys[order], slots[order]

    def remove(self, keys: Keys) -> None:
        """Take keys out, each once and all of them here. Readers find the others all the while.

        Only the parts that lose keys are made anew.
        """
        places, counts = self.places, self._counts - self._counted(keys)
        parts, addresses, bits = list(places.parts), places.addresses.copy(), places.bits.copy()
        gone = np.sort(keys)
        for k in np.flatnonzero(counts < self._counts).tolist():
            part = parts[k]
            taken = part[part[:, 2].view(np.int32) >= 0]
            own = np.ascontiguousarray(taken[:, :2]).view(np.uint64)[:, 0]
            at = np.minimum(np.searchsorted(gone, own), gone.size - 1)
            kept = np.ascontiguousarray(taken[gone[at] != own])
            smaller = _empty(int(_places_for(counts[k : k + 1])[0]) if len(kept) else 2)
            kernels.move(kept, smaller)
            self._total += (len(smaller) if len(kept) else 0) - len(part)
            parts[k], addresses[k], bits[k] = smaller, smaller.ctypes.data, len(smaller).bit_length() - 1
        self.places = IndexPlaces(tuple(parts), addresses, bits)
        self._counts, self.count = counts, self.count - keys.size

    def insert(self, keys: Keys, slots: Slots) -> None:
        """Add keys, each once and none of them here. Readers find keys that were here before all the while."""
        if len(self._counts) == 1:
            if self.count + keys.size > FULLEST * self._single:
                self._divide()
        counts = self._counts + self._counted(keys)
        self._grow(counts)
        kernels.insert(self.places, keys, slots)
        self._counts, self.count = counts, self.count + keys.size

    def _counted(self, keys: Keys) -> NDArray[np.int64]:
        """Return how many of the keys belong to each part."""
        if len(self._counts) == 1:
            return np.array([keys.size], np.int64)
        return np.bincount(bucket(keys), minlength=BUCKETS)

    def _divide(self) -> None:
        """Go on with a part for each bucket."""
        (part,) = self.places.parts
        taken = part[part[:, 2].view(np.int32) >= 0]
        keys = np.ascontiguousarray(taken[:, :2]).view(np.uint64)[:, 0]
        counts = np.bincount(bucket(keys), minlength=BUCKETS)
        # One array to begin with. Nobody needs it any more once each part has grown.
        has = counts > 0
        sizes = np.where(has, _places_for(counts), 0)
        ends, whole, places = np.cumsum(sizes), _empty(int(sizes.sum())), _without_keys(BUCKETS)
        places.addresses[has] = whole.ctypes.data + _PLACE_BYTES * (ends - sizes)[has]
        places.bits[has] = np.frexp(sizes[has])[1] - 1
        (none, *_), bounds = places.parts, zip((ends - sizes).tolist(), ends.tolist(), strict=True)
        places = places._replace(parts=tuple(whole[a:b] if a < b else none for a, b in bounds))
        kernels.insert(places, keys, np.ascontiguousarray(taken[:, 2]).view(np.int32))
        self.places, self._counts, self._total = places, counts, len(whole)

    def _grow(self, counts: NDArray[np.int64]) -> None:
        """Make room for so many keys in each part."""
        places = self.places
        # A part without keys has no room: it is the same for many.
        full = np.flatnonzero(counts > np.where(self._counts > 0, FULLEST * (1 << places.bits), 0))
        if not full.size:
            return
        parts, addresses, bits = list(places.parts), places.addresses.copy(), places.bits.copy()
        for k, size in zip(full.tolist(), _places_for(counts[full]).tolist(), strict=True):
            larger = _empty(size)
            kernels.move(parts[k], larger)
            self._total += size - (len(parts[k]) if self._counts[k] else 0)
            parts[k], addresses[k], bits[k] = larger, larger.ctypes.data, size.bit_length() - 1
        self.places = IndexPlaces(tuple(parts), addresses, bits)


def _places_for(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the least power of two of places for so many keys each."""
    # count <= 3/4 places.
    least = (4 * counts + 2) // 3
    found: NDArray[np.int64] = np.maximum(SMALLEST, 1 << np.frexp(least - 1)[1].astype(np.int64))
    return found


def _without_keys(parts: int) -> IndexPlaces:
    """Return so many parts, all the same, that have no keys and never will."""
    none = _empty(2)
    addresses = np.full(parts, none.ctypes.data, np.int64)
    return IndexPlaces((none,) * parts, addresses, np.ones(parts, np.int64))


def _empty(places: int) -> Words:
    """Return a part without keys."""
    return np.full((places, 3), 0xFFFFFFFF, np.uint32)
