"""A table on a shard: rows by key, changed in place by one update after another, and read at exact versions.

A row that no update has touched does not exist; it reads as its initial row. Before an update writes, it may publish
the rows as they were (its undo record). A reader of version v gathers the live rows, then lays over them the records of
later versions, newest first. A record is there before the first write that it undoes, so whatever a reader found half
written is replaced: readers take no lock, and see no mixture.

One thread at a time computes, commits, forgets and restores; any number may read meanwhile.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from psserver.optimizers import NUMPY, AnyArray, Backend
from psserver.optimizers.row_kernels import RowKernels, Slots
from psserver.optimizers.rows import RowOptimizer, RowStep
from psserver.shard import arithmetic
from psserver.shard.accumulator import RunningSum
from psserver.shard.tables.chunks import ROWS, Chunks
from psserver.shard.tables.index import Index
from pswire.model.tables import Floats, Keys, TableSpec, check_keys, initial_rows
from pswire.values import value

Contribution = tuple[Keys, Floats, float]
"""Sorted unique keys, their gradients ([n, dim]), and a factor."""
Counts = NDArray[np.uint32]


@value
class Update:
    """The coming version of the rows that its contributions touch, computed and not yet there.

    `slots`: of `keys`, -1 for rows that do not exist yet. `counts`: the updates of each row so far. `before`, `after`:
    rows [n, dim] of `keys`. `state`: the optimizer's slots afterwards. `largest`: the largest
    magnitude in rows and slots; infinite unless `finite`.
    """

    version: int
    keys: Keys
    slots: Slots
    counts: Counts
    before: Floats
    after: Floats
    state: dict[str, Floats]
    finite: bool
    largest: float


@value
class TableState:
    """A table at one version, in the order of keys. `touched`: the last version that changed a row."""

    keys: Keys
    values: Floats
    slots: dict[str, Floats]
    touched: Counts
    count: Counts


@value
class _Undo:
    """The rows that the update to `version` changed, as they were."""

    version: int
    keys: Keys
    rows: Floats


class Table:
    """One table's rows on one server. `version`: the newest. `oldest`: the oldest that can be read."""

    def __init__(
        self, spec: TableSpec, optimizer: RowOptimizer, backend: Backend = NUMPY, version: int = 0
    ) -> None:
        self.spec, self.version, self.oldest = spec, version, version
        self._optimizer, self._backend = optimizer, backend

        def kernels() -> RowKernels:
            return backend.rows

        self._index, self._undo = Index(kernels), tuple[_Undo, ...]()
        self._count = 0
        self._keys, self._values = Chunks(1, kernels, np.uint64), Chunks(spec.dim, kernels)
        self._slots = {name: Chunks(width or spec.dim, kernels) for name, width in optimizer.widths.items()}
        # Of each row the last version that changed it, and how many did.
        self._ages = Chunks(2, kernels, np.uint32)

    # Sizes

    @property
    def count(self) -> int:
        """The number of rows."""
        return self._count

    @property
    def slot_names(self) -> tuple[str, ...]:
        """The names of the optimizer's slots."""
        return tuple(self._slots)

    @property
    def load(self) -> float:
        """The part of the index's places that are taken."""
        return self._index.load

    @property
    def nbytes(self) -> int:
        """The memory of rows and index, in bytes; undo records are extra."""
        return self._index.nbytes + self._count * self.row_bytes

    @property
    def undo_bytes(self) -> int:
        """The memory of undo records, in bytes."""
        return sum(record.keys.nbytes + record.rows.nbytes for record in self._undo)

    @property
    def _columns(self) -> list[Chunks]:
        return [self._keys, self._values, *self._slots.values(), self._ages]

    @property
    def row_bytes(self) -> int:
        """The memory of a row, without its place in the index."""
        return sum(column.row_bytes for column in self._columns)

    def missing(self, keys: Keys) -> int:
        """Return how many of `keys` have no row."""
        return int(np.count_nonzero(self._index.find(keys) < 0))

    # Reading

    def read(self, keys: Keys, version: int | None = None) -> Floats:
        """Return rows of `keys` (any order) at a version, by default the newest: float32 [n, dim]. Makes no row.

        Raises ValueError for a version that cannot be read.
        """
        if version is None:
            version = self.version
        self._check_readable(version)
        slots = self._index.find(keys)
        rows = self._gathered(keys, slots)
        # After the rows, for an update may begin at any moment.
        for record in reversed(self._undo):
            if record.version <= version:
                break
            at = np.minimum(np.searchsorted(record.keys, keys), max(record.keys.size - 1, 0))
            if record.keys.size:
                hit = record.keys[at] == keys
                rows[hit] = record.rows[at[hit]]
        # The records may have ended meanwhile, and with them what was torn.
        self._check_readable(version)
        return rows

    def _check_readable(self, version: int) -> None:
        if not self.oldest <= version <= self.version:
            raise ValueError(
                f"table {self.spec.name!r}: expected a version from {self.oldest} to {self.version}, got {version}"
            )

    def _gathered(self, keys: Keys, slots: NDArray[np.int32]) -> Floats:
        rows: Floats = self._values.gather(slots)
        absent = np.flatnonzero(slots < 0)
        if absent.size:
            rows[absent] = initial_rows(self.spec, keys[absent])
        return rows

    def touched(self, keys: Keys) -> Counts:
        """Return the last version that changed each row; 0 for a row that does not exist."""
        return self._kept(self._ages, self._index.find(keys), 0)[:, 0]

    def _kept(self, column: Chunks, slots: NDArray[np.int32], absent: float) -> AnyArray:
        """Return a column of rows, `absent` where there is no row."""
        return column.gather(slots, np.full((slots.size, column.width), absent, column.dtype))

    # Updates

    def compute(self, contributions: Sequence[Contribution], scale: float, lr_scale: float) -> Update:
        """Compute the coming version from contributions in the order of the log; changes nothing.

        A row's gradient is the sum of factor * gradient over the contributions that have it, times `scale`: the bits
        of a dense variable whose other gradients are zero.
        """
        keys, total, factor = self._merged(contributions)
        slots = self._index.find(keys)
        before = self._gathered(keys, slots)
        state = {
            name: self._kept(column, slots, self._optimizer.initial[name])
            for name, column in self._slots.items()
        }
        after, counts = before, self._kept(self._ages, slots, 0)[:, 1]
        if keys.size:
            numbers = RowStep(self.version, lr_scale, factor, scale)
            after = self._optimizer.step(before, total, state, counts, numbers, self._backend)
        largest = max(arithmetic.largest(each.reshape(-1)) for each in (after, *state.values()))
        finite = bool(np.isfinite(largest))
        largest = largest if finite else float("inf")
        return Update(self.version + 1, keys, slots, counts, before, after, state, finite, largest)

    def _merged(self, contributions: Sequence[Contribution]) -> tuple[Keys, Floats, float]:
        """Return all keys, the sum of their gradients, and the factor that is still to be multiplied."""
        if not contributions:
            return np.zeros(0, np.uint64), np.zeros((0, self.spec.dim), np.float32), 1.0
        keys = contributions[0][0]
        if len(contributions) > 1:
            keys = np.unique(np.concatenate([each for each, _, _ in contributions]))
        if len(contributions) == 1:
            # The step may overwrite it.
            return keys, contributions[0][1].copy(), contributions[0][2]
        added = RunningSum()
        for own, rows, factor in contributions:
            wide = np.zeros((keys.size, self.spec.dim), np.float32)
            wide[np.searchsorted(keys, own)] = rows
            added.add(wide.reshape(-1), factor, "", self._backend)
        total = added.total()
        return keys, total.values.reshape(keys.size, self.spec.dim), total.pending

    def commit(self, update: Update, *, keep: bool) -> None:
        """Make the version that `compute` returned. Raises ValueError, with nothing changed, for another.

        `keep`: older versions stay readable, and others may read meanwhile. Without it nobody else may read during the
        call, and afterwards this version is the oldest.
        """
        if update.version != self.version + 1:
            raise ValueError(f"expected an update to version {self.version + 1}, got one to {update.version}")
        if keep:
            self._undo = (*self._undo, _Undo(update.version, update.keys, update.before))
        slots = update.slots.copy()
        fresh = np.flatnonzero(slots < 0)
        slots[fresh] = np.arange(self._count, self._count + fresh.size)
        touched = np.full(slots.size, update.version, np.uint32)
        rows = TableState(update.keys, update.after, update.state, touched, update.counts + np.uint32(1))
        self._write(slots, rows, fresh)
        self.version = update.version
        if not keep:
            self.forget(self.version)

    def _write(self, slots: NDArray[np.int32], rows: TableState, fresh: NDArray[np.int64]) -> None:
        """Write rows at slots, of which those at `fresh` are new, and make the new ones known."""
        if not slots.size:
            return
        for column in self._columns:
            column.grow(self._count + fresh.size)
        self._keys.scatter(slots[fresh], rows.keys[fresh, None])
        self._values.scatter(slots, rows.values)
        for name, column in self._slots.items():
            column.scatter(slots, rows.slots[name])
        self._ages.scatter(slots, np.stack([rows.touched, rows.count], axis=1))
        index = self._index.with_room(fresh.size)
        index.insert(rows.keys[fresh], slots[fresh])
        self._index, self._count = index, self._count + fresh.size

    def forget(self, oldest: int) -> None:
        """Drop what only readers of versions before `oldest` need."""
        self.oldest = max(self.oldest, min(oldest, self.version))
        self._undo = tuple(record for record in self._undo if record.version > self.oldest)

    # Saved state

    def state(self) -> TableState:
        """Return the newest version, in arrays of its own."""
        slots = np.arange(self._count, dtype=np.int32)
        slots = slots[np.argsort(self._keys.gather(slots)[:, 0])]
        return TableState(
            self._keys.gather(slots)[:, 0],
            self._values.gather(slots),
            {name: column.gather(slots) for name, column in self._slots.items()},
            *self._ages.gather(slots).T.copy(),
        )

    def restore(self, state: TableState, version: int) -> None:
        """Restore what `state` returned, or the rows of other buckets, into a table without rows, as `version`.

        Raises ValueError, with nothing changed.
        """
        self.check_state(state)
        slots = np.arange(state.keys.size, dtype=np.int32)
        self._write(slots, state, slots.astype(np.int64))
        self.version = self.oldest = version
        self._undo = ()

    def check_state(self, state: TableState) -> None:
        """Raise ValueError if `restore` would."""
        if self._count:
            raise ValueError(
                f"table {self.spec.name!r}: expected no rows before a restore, got {self._count}"
            )
        rows = state.keys.size
        shapes: Mapping[str, tuple[NDArray[np.generic], tuple[int, ...], type[np.generic]]] = {
            "keys": (state.keys, (rows,), np.uint64),
            "values": (state.values, (rows, self.spec.dim), np.float32),
            "touched": (state.touched, (rows,), np.uint32),
            "count": (state.count, (rows,), np.uint32),
            **{
                name: (state.slots.get(name, np.zeros(0)), (rows, width or self.spec.dim), np.float32)
                for name, width in self._optimizer.widths.items()
            },
        }
        for name, (array, shape, dtype) in shapes.items():
            if array.shape != shape or array.dtype != dtype:
                raise ValueError(
                    f"table {self.spec.name!r}: expected {name} of {dtype.__name__}{list(shape)}, "
                    f"got {array.dtype}{list(array.shape)}"
                )
        if set(state.slots) != set(self._optimizer.widths):
            raise ValueError(f"expected slots {sorted(self._optimizer.widths)}, got {sorted(state.slots)}")
        wrong = check_keys(state.keys, 0, self.spec.buckets)
        if wrong:
            raise ValueError(f"table {self.spec.name!r}: {wrong}")
        if not all(bool(np.isfinite(each).all()) for each in (state.values, *state.slots.values())):
            raise ValueError(f"table {self.spec.name!r}: expected finite numbers")

    @property
    def row_octets(self) -> int:
        """The bytes of a row in `octets`."""
        return 8 + 4 * self.spec.dim

    def octets(self) -> NDArray[np.uint8]:
        """Return all keys, sorted, and behind them the rows of the newest version, as they travel."""
        slots = np.arange(self._count, dtype=np.int32)
        slots = slots[np.argsort(self._keys.gather(slots)[:, 0])]
        out = np.empty(self._count * self.row_octets, np.uint8)
        out[: 8 * self._count].view("<u8")[...] = self._keys.gather(slots)[:, 0]
        out[8 * self._count :].view("<f4").reshape(-1, self.spec.dim)[...] = self._values.gather(slots)
        return out

    def parts(self) -> Iterator[bytes]:
        """Iterate over keys and values in the order of keys, for a digest; the same for any number of servers."""
        slots = np.arange(self._count, dtype=np.int32)
        slots = slots[np.argsort(self._keys.gather(slots)[:, 0])]
        kind = np.dtype([("key", "<u8"), ("row", "<f4", (self.spec.dim,))])
        for start in range(0, slots.size, ROWS):
            here = slots[start : start + ROWS]
            both = np.empty(here.size, kind)
            both["key"], both["row"] = self._keys.gather(here)[:, 0], self._values.gather(here)
            yield both.tobytes()
