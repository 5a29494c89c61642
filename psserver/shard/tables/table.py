"""A table on a shard: rows by key, changed in place by one update after another, and read at exact versions.

A row that no update has touched does not exist; it reads as its initial row. Before an update writes, it publishes the
rows as they were (its undo record). A reader of version v gathers the live rows, then lays over them the records of
later versions, newest first. A record is there before the first write that it undoes, so whatever a reader found half
written is replaced: readers take no lock, and see no mixture.

One thread at a time updates (`psserver.shard.tables.updates`), forgets and restores; any number may read meanwhile.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Final

import numpy as np
from numpy.typing import NDArray

from psserver.fast import ALONE, Backend
from psserver.fast import rows as kernels
from psserver.fast.rows import IndexPlaces, Slots
from psserver.optimizers.rows import RowOptimizer
from psserver.shard.accumulator import RunningSum
from psserver.shard.tables.index import Buckets, Index
from psserver.shard.tables.snapshot import Snapshot, TableState
from psserver.shard.tables.store import Counts, RowStore
from psserver.shard.tables.undo import Undo
from psserver.table_figures import TableFigures
from pswire.model.adjacent import Cut
from pswire.model.initial_rows import initial_rows
from pswire.model.tables import BUCKETS, Floats, Keys, TableSpec, check_keys

# Buckets are looked through in so many groups: every server has as many of each.
_GROUPS: Final = 64
# Rows that are restored at a time.
RESTORED: Final = 1 << 18
# Bytes of a row in keys, slots, masks, and in an index that grows, of which two are there meanwhile.
_UPDATE_BYTES: Final = 128
# Numbers of new rows that are made at a time.
_MADE: Final = 1 << 18
Contribution = tuple[Keys, Floats, float]
"""Sorted unique keys, their gradients ([n, dim]), and a factor."""


class Table:
    """One table's rows on one server. `version`: the newest. `oldest`: the oldest that can be read.

    `nbytes`: the memory of rows and index; `undo_bytes`: that of undo records. Both are asked for at every message. Its
    rows lie in `store`, perhaps beside those of others.
    """

    def __init__(
        self,
        spec: TableSpec,
        optimizer: RowOptimizer,
        backend: Backend = ALONE,
        version: int = 0,
        store: RowStore | None = None,
    ) -> None:
        """`store`: one with rows of this width and this optimizer; None for one of its own."""
        self.spec, self.version, self.oldest = spec, version, version
        self.store = RowStore(spec.dim, optimizer, backend) if store is None else store
        self._index, self._undo = Index(), tuple[Undo, ...]()
        self.nbytes, self.undo_bytes = self._index.nbytes, 0
        # How often rows have gone.
        self.evictions = 0
        # Copies that are being made.
        self._snapshots = tuple[Snapshot, ...]()

    # Sizes

    @property
    def count(self) -> int:
        """The number of rows."""
        return self._index.count

    @property
    def saved_bytes(self) -> int:
        """The memory of rows that were saved for copies under way."""
        return sum(snapshot.nbytes for snapshot in self._snapshots)

    @property
    def slot_names(self) -> tuple[str, ...]:
        """The names of the optimizer's slots."""
        return tuple(self.store.optimizer.widths)

    def figures(self) -> TableFigures:
        """Return what the table holds."""
        return TableFigures(self.spec.name, self.count, self.nbytes)

    @property
    def row_bytes(self) -> int:
        """The memory of a row, without its place in the index."""
        return self.store.row_bytes

    @property
    def update_bytes(self) -> int:
        """The memory of a row while an update computes it: saved as it was, its gradient as it is summed, the result,
        and its place in keys, slots and index."""
        return 2 * self.store.row_bytes + 3 * 4 * self.spec.dim + _UPDATE_BYTES

    def missing(self, keys: Keys) -> int:
        """Return how many of `keys` have no row."""
        return int(np.count_nonzero(self._index.find(keys) < 0))

    # Reading

    def read(self, keys: Keys, version: int | None = None) -> Floats:
        """Return rows of `keys` (any order) at a version, by default the newest: float32 [n, dim]. Makes no row.

        Raises ValueError for a version that cannot be read.
        """
        return read([self], [keys], self.version if version is None else version)[0]

    def check_readable(self, version: int) -> None:
        """Raise ValueError for a version that cannot be read."""
        if not self.oldest <= version <= self.version:
            raise ValueError(
                f"table {self.spec.name!r}: expected a version from {self.oldest} to {self.version}, got {version}"
            )

    @property
    def places(self) -> IndexPlaces:
        """The places of the index as of now."""
        return self._index.places

    def find(self, keys: Keys) -> Slots:
        """Return the slot of each key, -1 where there is no row."""
        return self._index.find(keys)

    def overlay(self, keys: Keys, rows: Floats, version: int) -> None:
        """Lay the rows of a version over newer ones."""
        for record in reversed(self._undo):
            if record.version <= version:
                break
            record.overlay(keys, rows)

    def touched(self, keys: Keys) -> Counts:
        """Return the last version that changed each row; 0 for a row that does not exist."""
        return self.store.ages(self.find(keys))[:, 0]

    # Updates

    def merged(self, contributions: Sequence[Contribution]) -> tuple[Keys, Floats, float]:
        """Return all keys, the sum of their gradients, and the factor that is still to be multiplied."""
        if not contributions:
            return np.zeros(0, np.uint64), np.zeros((0, self.spec.dim), np.float32), 1.0
        if len(contributions) == 1:
            return contributions[0]
        keys = reduce(kernels.union, [each for each, _, _ in contributions])
        added = RunningSum()
        for own, rows, factor in contributions:
            wide = np.empty((keys.size, self.spec.dim), np.float32)
            kernels.spread(keys, own, np.ascontiguousarray(rows), wide)
            added.add(wide.reshape(-1), factor, self.store.backend)
        total = added.total()
        return keys, total.values.reshape(keys.size, self.spec.dim), total.pending

    def publish(self, record: Undo) -> None:
        """Keep the rows that an update is about to change readable."""
        self.undo_bytes += record.nbytes
        self._undo = (*self._undo, record)

    def take_up(self, version: int, keys: Keys, slots: Slots) -> None:
        """Make new rows known, which are written, evict others if it is time, and move on to `version`."""
        if keys.size:
            self._index.insert(keys, slots)
            self._measure()
        if self.spec.evict_age is not None:
            self._evict(version, self.spec.evict_age)
            if version % self.spec.evict_every == 0:
                self._measure()
        self.version = version

    def save(self, keys: Keys, slots: Slots) -> None:
        """Save rows that are about to change, go or be made, for copies under way. `keys` are sorted."""
        for snapshot in self._snapshots:
            snapshot.save(keys, slots)

    def _measure(self) -> None:
        self.nbytes = self._index.nbytes + self.count * self.row_bytes

    def _evict(self, version: int, age: int) -> None:
        """Drop rows that no update has touched for `age` versions: the same on any number of servers.

        A version looks through some buckets only: so no update takes long.
        """
        buckets = looked_through(self.spec.evict_every, version)
        if buckets is None:
            return
        keys, slots = self._index.sorted(buckets)
        going = self.store.ages(slots)[:, 0].astype(np.int64) <= version - age
        if not going.any():
            return
        # Before the slots are given away, for readers in other threads.
        self.evictions += 1
        self.publish(Undo.of(version, keys[going], self.store.values(slots[going])))
        self.save(keys[going], slots[going])
        self._index.remove(keys[going])
        self.store.give(slots[going])

    def forget(self, oldest: int) -> None:
        """Drop what only readers of versions before `oldest` need."""
        self.oldest = max(self.oldest, min(oldest, self.version))
        if self._undo and self._undo[0].version <= self.oldest:
            self._undo = tuple(record for record in self._undo if record.version > self.oldest)
            self.undo_bytes = sum(record.nbytes for record in self._undo)

    def undone(self, version: int) -> Undo:
        """Return the rows that changed or went at a version that can be undone, as they were before it."""
        several = [record for record in self._undo if record.version == version]
        keys, first = np.unique(np.concatenate([record.keys for record in several]), return_index=True)
        # One that was updated and then evicted was saved twice: what it was before the update counts.
        return Undo.of(version, keys, np.concatenate([record.rows for record in several])[first])

    # Saved state

    def snapshot(self) -> Snapshot:
        """Begin a copy of the newest version, which another thread makes. Until `drop` updates save rows for it."""
        made = Snapshot(self._index, self.store, self.version)
        self._snapshots = (*self._snapshots, made)
        return made

    def drop(self, snapshot: Snapshot) -> None:
        """Save nothing more for a copy: it is made, or will not be."""
        self._snapshots = tuple(each for each in self._snapshots if each is not snapshot)

    def state(self, buckets: Buckets | None = None) -> TableState:
        """Return the newest version, in arrays of its own. `buckets`: of all, which are chosen; None: all of them."""
        keys, slots = self._index.sorted(buckets)
        rows = self.store.whole(slots)
        touched, counts = rows.ages.T.copy()
        return TableState(keys, rows.values, rows.state, touched, counts)

    def restore(self, state: TableState, version: int) -> None:
        """Restore what `state` returned, or the rows of other buckets, into a table without rows, as `version`.

        Raises ValueError, with nothing changed.
        """
        self.check_state(state)
        # In pieces, for what is between the state and the table takes memory, too.
        for start in range(0, state.keys.size, RESTORED):
            part = state.part(slice(start, start + RESTORED))
            ages = np.stack([part.touched, part.count], axis=1)
            self._index.insert(part.keys, self.store.restore(part.values, part.slots, ages))
        self.version = self.oldest = version
        self._undo, self.undo_bytes = (), 0
        self._measure()

    def keep(self, records: Sequence[Undo]) -> None:
        """Take up the undo records of versions up to the newest, the oldest first: those before can be read again."""
        for record in records:
            self.publish(record)
        self.oldest = min([self.oldest, *(record.version - 1 for record in records)])

    def check_state(self, state: TableState) -> None:
        """Raise ValueError if `restore` would."""
        if self.count:
            raise ValueError(f"table {self.spec.name!r}: expected no rows before a restore, got {self.count}")
        rows = state.keys.size
        shapes: Mapping[str, tuple[NDArray[np.generic], tuple[int, ...], type[np.generic]]] = {
            "keys": (state.keys, (rows,), np.uint64),
            "values": (state.values, (rows, self.spec.dim), np.float32),
            "touched": (state.touched, (rows,), np.uint32),
            "count": (state.count, (rows,), np.uint32),
            **{
                name: (state.slots.get(name, np.zeros(0)), (rows, width or self.spec.dim), np.float32)
                for name, width in self.store.optimizer.widths.items()
            },
        }
        for name, (array, shape, dtype) in shapes.items():
            if array.shape != shape or array.dtype != dtype:
                raise ValueError(
                    f"table {self.spec.name!r}: expected {name} of {dtype.__name__}{list(shape)}, "
                    f"got {array.dtype}{list(array.shape)}"
                )
        if set(state.slots) != set(self.store.optimizer.widths):
            raise ValueError(
                f"expected slots {sorted(self.store.optimizer.widths)}, got {sorted(state.slots)}"
            )
        wrong = check_keys(state.keys, 0, self.spec.buckets)
        if wrong:
            raise ValueError(f"table {self.spec.name!r}: {wrong}")
        pieces = (state.part(slice(start, start + RESTORED)) for start in range(0, rows, RESTORED))
        if not all(
            np.isfinite(each).all() for part in pieces for each in (part.values, *part.slots.values())
        ):
            raise ValueError(f"table {self.spec.name!r}: expected finite numbers")

    @property
    def row_octets(self) -> int:
        """The bytes of a row in `octets`."""
        return 8 + 4 * self.spec.dim

    def octets(self) -> NDArray[np.uint8]:
        """Return all keys, sorted, and behind them the rows of the newest version, as they travel."""
        keys, slots = self._index.sorted()
        out = np.empty(keys.size * self.row_octets, np.uint8)
        out[: 8 * keys.size].view("<u8")[...] = keys
        out[8 * keys.size :].view("<f4").reshape(-1, self.spec.dim)[...] = self.store.values(slots)
        return out


def read(tables: Sequence[Table], keys: Sequence[Keys], version: int) -> Cut:
    """Return rows of keys (any order) of tables of one store at a version: [n, dim] for each table. Makes no row.

    Raises ValueError for a version that cannot be read.
    """
    for table in tables:
        table.check_readable(version)
    slots, ends = tables[0].store.finder.find(tables, keys)
    return read_slots(tables, keys, slots, ends, version)


def read_slots(
    tables: Sequence[Table], keys: Sequence[Keys], slots: Slots, ends: Sequence[int], version: int
) -> Cut:
    """Read as `read` does, where the slots of all keys are known; `ends`: those of each table's."""
    store = tables[0].store
    whole = fresh(tables, keys, slots, store.values(slots))
    rows = [whole[end - each.size : end] for each, end in zip(keys, ends, strict=True)]
    for table, each, own in zip(tables, keys, rows, strict=True):
        # After the rows, for an update may begin at any moment.
        table.overlay(each, own, version)
        # The records may have ended meanwhile, and with them what was torn.
        table.check_readable(version)
    return Cut.of(whole.reshape(-1), rows)


def looked_through(every: int, version: int) -> NDArray[np.bool_] | None:
    """Return in which buckets rows may go at `version`; None for none. Each bucket is one once in `every` versions."""
    groups = np.arange(_GROUPS)
    due = groups[groups * every // _GROUPS == version % every]
    return np.isin(np.arange(BUCKETS) % _GROUPS, due) if due.size else None


def fresh(tables: Sequence[Table], keys: Sequence[Keys], slots: Slots, rows: Floats) -> Floats:
    """Write initial rows where there is none, and return `rows`."""
    absent = slots < 0
    if absent.any():
        start = 0
        for table, each in zip(tables, keys, strict=True):
            missing = np.flatnonzero(absent[start : start + each.size])
            for at in in_blocks(missing, table.spec.dim):
                rows[start + at] = initial_rows(table.spec, each[at])
            start += each.size
    return rows


def in_blocks(places: NDArray[np.intp], dim: int) -> Iterator[NDArray[np.intp]]:
    """Yield places of new rows, so many at a time that what is between keys and rows takes little memory."""
    step = max(1, _MADE // dim)
    for start in range(0, places.size, step):
        yield places[start : start + step]
