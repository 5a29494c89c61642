"""Ids that have been seen and have no row yet: how often, and when last. One thread uses it."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from psserver.shard.tables.index import Buckets, Index
from psserver.shard.tables.store import Counts
from pswire.model.tables import Keys

# Fewer entries than these are never packed.
_FEW: Final = 4096


class Waiting:
    """Counts of applied gradients by key, and the version of the last. A count of 0 is as good as no entry."""

    def __init__(self) -> None:
        self._index = Index()
        # [n, 2] by slot: the count, and the version of the last gradient.
        self._seen = np.zeros((0, 2), np.uint32)
        self._over = 0

    @property
    def nbytes(self) -> int:
        """The memory of all entries, in bytes."""
        return self._index.nbytes + self._seen.nbytes

    def counts(self, keys: Keys) -> Counts:
        """Return the count of each key."""
        slots = self._index.find(keys)
        found: Counts = np.zeros(keys.size, np.uint32)
        here = slots >= 0
        found[here] = self._seen[slots[here], 0]
        return found

    def note(self, keys: Keys, counts: Counts, version: int) -> None:
        """Set the counts of keys, each once; 0 forgets a key."""
        slots = self._index.find(keys)
        new = (slots < 0) & (counts > 0)
        count, fresh = self._index.count, int(np.count_nonzero(new))
        if count + fresh > len(self._seen):
            larger = np.zeros((max(_FEW, 2 * (count + fresh)), 2), np.uint32)
            larger[:count] = self._seen[:count]
            self._seen = larger
        slots[new] = np.arange(count, count + fresh, dtype=np.int32)
        self._index.insert(keys[new], slots[new])
        known = slots >= 0
        self._over += int(np.count_nonzero(counts[known] == 0))
        self._seen[slots[known], 0] = counts[known]
        self._seen[slots[known], 1] = version
        if self._over > max(_FEW, self._index.count // 2):
            self._pack()

    def forget(self, version: int) -> None:
        """Forget keys whose last gradient was applied at `version` or before."""
        seen = self._seen[: self._index.count]
        seen[seen[:, 1] <= version, 0] = 0
        self._pack()

    def _pack(self) -> None:
        keys, counts, touched = self.state()
        self.restore(keys, counts, touched)

    def state(self, buckets: Buckets | None = None) -> tuple[Keys, Counts, Counts]:
        """Return all keys that have been seen, sorted, their counts, and the version of each one's last gradient.

        `buckets`: of all, which are chosen; None: all of them.
        """
        keys, slots = self._index.sorted(buckets)
        seen = self._seen[slots]
        held = seen[:, 0] > 0
        counts, touched = seen[held].T.copy()
        return keys[held], counts, touched

    def restore(self, keys: Keys, counts: Counts, touched: Counts) -> None:
        """Hold what `state` returned, and nothing else."""
        self._index, self._over = Index(), 0
        self._index.insert(keys, np.arange(keys.size, dtype=np.int32))
        self._seen = np.stack([counts, touched], axis=1)


def occurrences(keys: Keys, parts: Sequence[Keys]) -> Counts:
    """Return in how many of the parts each key is. All are sorted."""
    found: Counts = np.zeros(keys.size, np.uint32)
    for part in parts:
        found[np.searchsorted(keys, part)] += np.uint32(1)
    return found
