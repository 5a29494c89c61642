"""A table as of one version, copied by another thread while updates go on.

The copy goes through the buckets in order. Before an update changes or removes rows, or makes new ones, it saves how
those were that lie in buckets still to be copied. The copy gathers rows without a lock, and then puts what was saved in
the place of what it found: a record is there before the first write, so whatever was torn or is too new is replaced.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from psserver.fast.rows import BUCKET_BITS, Slots
from psserver.shard.tables.index import Index
from psserver.shard.tables.store import Counts, RowStore
from pswire.model.tables import BUCKETS, Floats, Keys
from pswire.values import value

# Rows that are copied at a time: other threads get their turn in between.
PIECE: Final = 1 << 15
# Buckets of a group: saved rows are put in order by group, each only when the copy has come to it.
_GROUP: Final = 64
# Bits of a key that follow its bucket's.
_BELOW: Final = 64 - BUCKET_BITS


@value
class TableState:
    """A table at one version, in the order of keys. `touched`: the last version that changed a row."""

    keys: Keys
    values: Floats
    slots: dict[str, Floats]
    touched: Counts
    count: Counts

    def part(self, chosen: slice | NDArray[np.intp] | NDArray[np.bool_]) -> "TableState":
        """Return some of the rows; a slice of them without a copy."""
        slots = {name: slot[chosen] for name, slot in self.slots.items()}
        return TableState(
            self.keys[chosen], self.values[chosen], slots, self.touched[chosen], self.count[chosen]
        )

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays."""
        slots = sum(slot.nbytes for slot in self.slots.values())
        return self.keys.nbytes + self.values.nbytes + slots + self.touched.nbytes + self.count.nbytes


class Snapshot:
    """A copy of a table at `version`, its newest when this was made, with `rows` rows.

    `save` is for the thread that updates, before it writes; `copy` for one other thread, once.
    """

    def __init__(self, index: Index, store: RowStore, version: int) -> None:
        self.version, self.rows = version, index.count
        self._index, self._store = index, store
        # A power of two, as the number of buckets is.
        step = 1 << max(0, (BUCKETS * PIECE // max(self.rows, 1)).bit_length() - 1)
        self._step = min(step, BUCKETS)
        self._group = max(self._step, _GROUP)
        # Rows as they were, the oldest first; a count of 0 says that there was no row. Not yet by group, and by group.
        self._new = deque[TableState]()
        self._saved: list[list[TableState]] = [[] for _ in range(BUCKETS // self._group)]
        # Buckets below this one are copied.
        self._next = 0
        # Bytes that one thread has saved, and the other has let go.
        self._kept = self._freed = 0

    @property
    def nbytes(self) -> int:
        """The memory of saved rows."""
        return self._kept - self._freed

    def save(self, keys: Keys, slots: Slots) -> None:
        """Save rows of sorted keys that are about to change; slots are negative where there is no row."""
        own = _between(keys, self._next, BUCKETS)
        rows = _whole(self._store, keys[own], slots[own])
        # A row that has changed since was saved before that.
        unsaved = rows.touched <= self.version
        if unsaved.any():
            rows = rows.part(unsaved)
            self._new.append(rows)
            self._kept += rows.nbytes

    def copy(self) -> TableState:
        """Return all rows in arrays of their own."""
        made, at = _room(self._store, self.rows), 0
        for piece in self.pieces():
            at = _put(made, at, piece)
        return made.part(slice(at))

    def pieces(self) -> Iterator[TableState]:
        """Yield what `copy` returns, `PIECE` rows or so at a time; there may be none in a piece."""
        for start in range(0, BUCKETS, self._step):
            piece = self._piece(start, start + self._step)
            self._next = start + self._step
            if self._next % self._group == 0:
                self._freed += _nbytes(self._saved[start // self._group])
                self._saved[start // self._group] = []
            yield piece

    def _piece(self, start: int, stop: int) -> TableState:
        rows = _whole(self._store, *self._index.within(start, stop))
        # After the rows, for an update may begin at any moment.
        self._order()
        saved = self._saved[start // self._group]
        if len(saved) > 1 and start % self._group == 0:
            self._freed += _nbytes(saved)
            saved[:] = [_oldest(saved)]
            self._freed -= _nbytes(saved)
        own = [each.part(_between(each.keys, start, stop)) for each in saved]
        own = [each for each in own if each.keys.size]
        if not own:
            return rows
        before = _oldest(own)
        whole = _joined([rows.part(~np.isin(rows.keys, before.keys)), before.part(before.count > 0)])
        return whole.part(np.argsort(whole.keys))

    def _order(self) -> None:
        """Divide what was saved lately by group."""
        while self._new:
            rows = self._new.popleft()
            left = rows.nbytes
            for number in range(self._next // self._group, len(self._saved)):
                begin = number * self._group
                own = _between(rows.keys, begin, begin + self._group)
                if own.start < own.stop:
                    # In arrays of their own, which end with their group and not with the last one.
                    part = rows.part(np.arange(own.start, own.stop))
                    self._saved[number].append(part)
                    left -= part.nbytes
            self._freed += left


def _nbytes(several: list[TableState]) -> int:
    return sum(each.nbytes for each in several)


def _oldest(saved: list[TableState]) -> TableState:
    """Return all rows in the order of keys; of several records of a row the first counts."""
    whole = _joined(saved)
    _, first = np.unique(whole.keys, return_index=True)
    return whole.part(first)


def _whole(store: RowStore, keys: Keys, slots: Slots) -> TableState:
    """Return all that rows have; those of negative slots have a count of 0."""
    rows = store.whole(slots)
    touched, count = rows.ages.T.copy()
    return TableState(keys, rows.values, rows.state, touched, count)


def _room(store: RowStore, rows: int) -> TableState:
    """Return arrays for so many rows. Memory that nothing is written to costs nothing."""
    slots = {
        name: np.empty((rows, width or store.dim), np.float32)
        for name, width in store.optimizer.widths.items()
    }
    touched, count = np.empty(rows, np.uint32), np.empty(rows, np.uint32)
    return TableState(
        np.empty(rows, np.uint64), np.empty((rows, store.dim), np.float32), slots, touched, count
    )


def _put(into: TableState, at: int, rows: TableState) -> int:
    """Write rows from place `at` on, and return the place behind them."""
    own = slice(at, at + rows.keys.size)
    into.keys[own], into.values[own] = rows.keys, rows.values
    into.touched[own], into.count[own] = rows.touched, rows.count
    for name, slot in rows.slots.items():
        into.slots[name][own] = slot
    return own.stop


def _joined(several: list[TableState]) -> TableState:
    return TableState(
        np.concatenate([each.keys for each in several]),
        np.concatenate([each.values for each in several]),
        {name: np.concatenate([each.slots[name] for each in several]) for name in several[0].slots},
        np.concatenate([each.touched for each in several]),
        np.concatenate([each.count for each in several]),
    )


def _between(keys: Keys, start: int, stop: int) -> slice:
    """Return where in sorted keys those in buckets [start, stop) are."""
    begin, end = (
        keys.size if at == BUCKETS else int(np.searchsorted(keys, np.uint64(at << _BELOW)))
        for at in (start, stop)
    )
    return slice(begin, end)
