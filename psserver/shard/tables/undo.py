"""Rows as they were before an update, for readers of older versions."""

import numpy as np
from numpy.typing import NDArray

from pswire.model.tables import Floats, Keys
from pswire.values import value


@value
class Undo:
    """The rows that the update to `version` changes, as they were. `keys` are sorted.

    `filled`: the number of rows of the whole update that are saved so far, and may have changed; those of this record
    are the ones from `start` on.
    """

    version: int
    keys: Keys
    rows: Floats
    filled: NDArray[np.int64]
    start: int = 0

    @staticmethod
    def of(version: int, keys: Keys, rows: Floats) -> "Undo":
        """Return the record of rows that are all saved."""
        return Undo(version, keys, rows, np.array([keys.size]))

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.rows.nbytes

    def overlay(self, keys: Keys, rows: Floats) -> None:
        """Lay saved rows over those of the same keys, which were gathered before."""
        saved = min(int(self.filled[0]) - self.start, self.keys.size)
        if saved > 0:
            at = np.minimum(np.searchsorted(self.keys[:saved], keys), saved - 1)
            hit = self.keys[at] == keys
            rows[hit] = self.rows[at[hit]]
