"""All tables of a server: they move from version to version together, and with the server's arena.

Names of saved arrays, where t is a table's number in the plan, and n its rows here:

    table/<t>/keys            (n,) uint64, sorted
    table/<t>/values          (n, dim) float32
    table/<t>/slot/<name>     (n, width) float32  a slot of the table's optimizer
    table/<t>/touched, count  (n,) uint32  the last version that changed a row; how many did
    rows/<ticket>/<t>/keys, values   rows of a payload that is staged
    added/<k>/<t>/keys, values       rows of a contribution to the coming update
    undo/<version>/<t>/keys, values  for compensation: see `psserver.shard.tables.bases`
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psserver.fast import ALONE, Backend, RowPass
from psserver.optimizers import Optimizer
from psserver.optimizers.rows import rows_optimizer
from psserver.records import StateError
from psserver.shard import arithmetic
from psserver.shard.tables import bases
from psserver.shard.tables.saved import SavedRows
from psserver.shard.tables.snapshot import TableState
from psserver.shard.tables.store import RowStore
from psserver.shard.tables.table import Table, read
from psserver.shard.tables.updates import Contributions, advance
from psserver.table_figures import TableFigures
from pswire.model.adjacent import joined
from pswire.model.plan import Plan
from pswire.model.rows import CutRows, Rows, WantedRows, keys_of, values_of
from pswire.model.tables import Floats, Keys, canonical, check_keys, first_wrong, split

Arrays = Mapping[str, NDArray[Any]]
TABLE_KINDS = ("table", "rows", "added", bases.UNDO)
"""The first parts of the names of these arrays."""
_NO_ROWS: Floats = np.zeros((0, 0), np.float32)


class Tables:
    """The tables of one server; falsy if the job has none.

    The owner of the shard calls everything but `advance`, which one other thread may call, and `read`,
    which any thread may.
    """

    def __init__(
        self,
        plan: Plan,
        server: int,
        optimizer: Optimizer,
        backend: Backend = ALONE,
        *,
        keep_bases: bool = False,
    ) -> None:
        """`keep_bases`: updates compensate, so the rows that open tickets began with stay readable.

        Raises OptimizerError for a rule that rows cannot have.
        """
        self._backend, self._keep_bases = backend, keep_bases
        rules = [
            rows_optimizer(json.loads(spec.optimizer) if spec.optimizer else None, optimizer)
            for spec in plan.tables
        ]
        # Tables of one width and one rule share a store: an update passes over it once.
        stores: dict[str, RowStore] = {}
        made = []
        for spec, rule in zip(plan.tables, rules, strict=True):
            alike = canonical({"dim": spec.dim, **rule.config})
            store = stores.setdefault(alike, RowStore(spec.dim, rule, backend))
            made.append(Table(spec, rule, backend, store=store))
        self.tables = tuple(made)
        self._families = [
            [t for t, table in enumerate(made) if table.store is store] for store in stores.values()
        ]
        self.start, self.stop = plan.buckets(server)
        # Contributions to the coming update, with factors, in the order of the log.
        self.added: list[tuple[Rows, float]] = []
        self._added_bytes = 0
        # How many need the rows of a version.
        self._holds = Counter[int]()
        # Whether the coming version is being made, in another thread: nothing is forgotten meanwhile.
        self.advancing = False

    def __bool__(self) -> bool:
        return bool(self.tables)

    @property
    def passes(self) -> list[RowPass]:
        """The updates of rows where they lie, to be compiled."""
        return [self.tables[family[0]].store.optimizer.one_pass for family in self._families]

    @property
    def nbytes(self) -> int:
        """The memory of rows, indexes, undo records and contributions."""
        return (
            sum(table.nbytes + table.undo_bytes + table.saved_bytes for table in self.tables)
            + self._added_bytes
        )

    def figures(self) -> list[TableFigures]:
        """Return what each table holds here and how its rows are used."""
        return [table.figures() for table in self.tables]

    def demand(self, rows: Rows, *, exact: bool = True) -> int:
        """Return the bytes that an update with a payload's rows would take, and its new rows from then on.

        Not `exact`: as if all rows were new.
        """
        total = 0
        for (keys, _), table in zip(rows, self.tables, strict=bool(rows)):
            new = table.missing(keys) if exact else keys.size
            total += new * table.row_bytes + keys.size * table.update_bytes
        return total

    def wrong(self, keys: WantedRows) -> str | None:
        """Say what is wrong with keys of a message, one array for each table; None if nothing is."""
        found = first_wrong(keys, self.start, self.stop)
        if found is None:
            return None
        return f"table {self.tables[found].spec.name!r}: {check_keys(keys[found], self.start, self.stop)}"

    # Readers

    @property
    def newest(self) -> int:
        """The newest version."""
        return self.tables[0].version

    def hold(self, number: int) -> None:
        """Keep the rows of a version readable, until as many calls of `release`."""
        self._holds[number] += 1

    def release(self, number: int) -> None:
        """Undo one `hold` of a version, unless it was taken back."""
        if number in self._holds:
            self._holds[number] -= 1
            self._forget()

    def take_back(self, number: int) -> None:
        """Drop the rows of an old version although somebody holds them."""
        del self._holds[number]
        self._forget()

    def _forget(self) -> None:
        self._holds = +self._holds
        for table in self.tables if not self.advancing else ():
            table.forget(min(self._holds, default=table.version))

    def read(self, keys: WantedRows, version: int) -> Sequence[Floats]:
        """Return rows at a version. Raises ValueError if it is gone."""
        if keys and len(self._families) == 1:
            return read(self.tables, keys, version)
        found: list[Floats] = [_NO_ROWS] * (len(self.tables) if keys else 0)
        for table in self.tables if keys else ():
            table.check_readable(version)
        for family in self._families if keys else ():
            asked = [t for t in family if keys[t].size]
            if asked:
                rows = read([self.tables[t] for t in asked], [keys[t] for t in asked], version)
                for t, own in zip(asked, rows, strict=True):
                    found[t] = own
        return [
            rows if rows is not _NO_ROWS else np.zeros((0, table.spec.dim), np.float32)
            for rows, table in zip(found, self.tables, strict=bool(keys))
        ]

    def add(self, rows: Rows, factor: float, base: int, strength: float = 0.0) -> None:
        """Add a contribution from version `base` to the coming update, compensated by `strength`."""
        self.added.append((self.compensated(rows, base, strength), factor))
        self._added_bytes += nbytes_of(rows)

    def compensated(self, rows: Rows, base: int, strength: float) -> Rows:
        """Return the rows of a contribution as the coming update takes them; they stay as they are."""
        if not strength or not rows:
            return rows
        keys = keys_of(rows)
        now = self.read(keys, self.tables[0].version)
        return bases.corrected(rows, now, self.read(keys, base), strength, self._backend)

    def clear(self) -> None:
        """Start the coming update anew."""
        self.added.clear()
        self._added_bytes = 0

    def advance(self, scale: float, lr_scale: float) -> tuple[int, dict[str, int]]:
        """Make the coming version of all tables from what was added.

        Return how many elements of rows it could change, and how many of these kept their old values, by the table's
        name, without zeros. Older versions stay readable until `committed`.
        """
        total, kept = 0, dict[str, int]()
        for each in self._by_store():
            elements, own = advance(each, scale, lr_scale, self._single)
            total, kept = total + elements, kept | own
        return total, {name: number for name, number in kept.items() if number}

    @property
    def _single(self) -> CutRows | None:
        """The rows of the coming update if they came in one payload and all lie in one store."""
        rows = self.added[0][0] if len(self.added) == len(self._families) == 1 else None
        return rows if isinstance(rows, CutRows) else None

    def _by_store(self) -> list[Contributions]:
        return [
            [
                (self.tables[t], [(*rows[t], factor) for rows, factor in self.added if rows[t][0].size])
                for t in family
            ]
            for family in self._families
        ]

    def committed(self) -> None:
        """Drop what the new version has made superfluous."""
        self.clear()
        self.advancing = False
        self._forget()

    # Saved state

    @property
    def saved_bytes(self) -> int:
        """The size of `rows_saved` in bytes, at most."""
        return sum(8 * table.count + table.nbytes for table in self.tables)

    def rows_saved(self) -> dict[str, NDArray[Any]]:
        """Return the newest rows as `SavedRows.copy` does."""
        saved = self.snapshot()
        try:
            return saved.copy()
        finally:
            self.drop(saved)

    def snapshot(self) -> SavedRows:
        """Begin a copy of the newest rows, which another thread makes, and which the caller drops afterwards.

        Updates may go on meanwhile.
        """
        return SavedRows([table.snapshot() for table in self.tables])

    def drop(self, saved: SavedRows) -> None:
        """Drop the snapshots of a copy that is made, or will not be."""
        for table, snapshot in zip(self.tables, saved.snapshots, strict=True):
            table.drop(snapshot)

    def added_rows(self) -> dict[str, NDArray[Any]]:
        """Return the rows of the coming update by name, without a copy."""
        found: dict[str, NDArray[Any]] = {}
        for k, (rows, _) in enumerate(self.added):
            found |= named(f"added/{k}", rows)
        return found

    def undo(self, held: Mapping[int, int]) -> dict[str, NDArray[Any]]:
        """Return what makes the rows that tickets hold of the newest, by name, without a copy. `held`: ticket -> its
        version."""
        if not self._keep_bases or not held:
            return {}
        return bases.saved(self.tables, min(held.values()))

    @property
    def factors(self) -> list[float]:
        """The factors of contributions to the coming update."""
        return [factor for _, factor in self.added]

    def check(self, arrays: Arrays, factors: Sequence[float], version: int, held: Mapping[int, int]) -> None:
        """Raise StateError unless `restore` can take these arrays up."""
        present = {name for name in arrays if name.split("/")[0] in TABLE_KINDS}
        known = set(self._expected(arrays, factors, self._undone(version, held)))
        if present != known:
            missing, more = sorted(known - present)[:3], sorted(present - known)[:3]
            raise StateError(f"shard state: rows: missing {missing or 'none'}; unknown {more or 'none'}")
        for t, table in enumerate(self.tables):
            try:
                table.check_state(self._state(t, arrays))
            except ValueError as error:
                raise StateError(f"shard state: {error}") from error
        for prefix in sorted(
            {name.rsplit("/", 2)[0] for name in present if name.startswith(("rows/", "added/", "undo/"))}
        ):
            self._check_rows(self.rows_named(prefix, arrays), prefix)

    def _undone(self, version: int, held: Mapping[int, int]) -> range:
        return bases.needed(held if self._keep_bases else {}, version)

    def _expected(self, arrays: Arrays, factors: Sequence[float], undone: range) -> list[str]:
        count = len(self.tables)
        names = []
        for t, table in enumerate(self.tables):
            parts = ["keys", "values", "touched", "count", *(f"slot/{name}" for name in table.slot_names)]
            names += [f"table/{t}/{part}" for part in parts]
        staged = {name.split("/")[1] for name in arrays if name.startswith("rows/")}
        prefixes = [f"added/{k}" for k in range(len(factors))] + [f"rows/{ticket}" for ticket in staged]
        prefixes += [f"{bases.UNDO}/{each}" for each in undone]
        return names + [
            f"{p}/{t}/{part}" for p in prefixes for t in range(count) for part in ("keys", "values")
        ]

    def _check_rows(self, rows: Rows, what: str) -> None:
        for (keys, values), table in zip(rows, self.tables, strict=True):
            fits = keys.dtype == np.uint64 and keys.ndim == 1
            fits = fits and values.dtype == np.float32 and values.shape == (keys.size, table.spec.dim)
            wrong = check_keys(keys, self.start, self.stop) if fits else "expected keys and rows that fit"
            if wrong:
                raise StateError(f"shard state: {what}: table {table.spec.name!r}: {wrong}")

    def rows_named(self, prefix: str, arrays: Arrays) -> Rows:
        """Return rows that `named` has named."""
        return [
            (arrays[f"{prefix}/{t}/keys"], arrays[f"{prefix}/{t}/values"]) for t in range(len(self.tables))
        ]

    def restore(
        self, arrays: Arrays, factors: Sequence[float], version: int, held: Mapping[int, int]
    ) -> None:
        """Take up checked arrays, as of `version` (-1: before the first). `held`: ticket -> the version it holds."""
        for t, table in enumerate(self.tables):
            table.restore(self._state(t, arrays), max(version, 0))
            table.keep(bases.records(t, arrays, self._undone(version, held)))
        self.added = [
            ([(keys.copy(), values.copy()) for keys, values in self.rows_named(f"added/{k}", arrays)], factor)
            for k, factor in enumerate(factors)
        ]
        self._added_bytes = sum(nbytes_of(rows) for rows, _ in self.added)

    def _state(self, t: int, arrays: Arrays) -> TableState:
        at = f"table/{t}"
        slots = {name: arrays[f"{at}/slot/{name}"] for name in self.tables[t].slot_names}
        return TableState(
            arrays[f"{at}/keys"],
            arrays[f"{at}/values"],
            slots,
            arrays[f"{at}/touched"],
            arrays[f"{at}/count"],
        )


def named(prefix: str, rows: Rows) -> dict[str, NDArray[Any]]:
    """Return the arrays of a payload's rows by name."""
    found: dict[str, NDArray[Any]] = {}
    for t, (keys, values) in enumerate(rows):
        found |= {f"{prefix}/{t}/keys": keys, f"{prefix}/{t}/values": values}
    return found


def nbytes_of(rows: Rows) -> int:
    """Return the memory of a payload's rows."""
    if isinstance(rows, CutRows):
        return rows.keys.whole.nbytes + rows.values.whole.nbytes
    return sum(keys.nbytes + values.nbytes for keys, values in rows)


def same_rows(one: Rows, other: Rows) -> bool:
    """Return True if two payloads have the same rows to the bit."""
    return len(one) == len(other) and all(
        np.array_equal(keys, others) and np.array_equal(a.view(np.uint32), b.view(np.uint32))
        for (keys, a), (others, b) in zip(one, other, strict=True)
    )


def squares_of(rows: Rows, backend: Backend = ALONE) -> float | None:
    """Return the sum of squares of all gradients; None if one is not finite."""
    return arithmetic.squares(joined(values_of(rows)), backend) if rows else 0.0


def divided(arrays: Sequence[Arrays], name: str, servers: int) -> list[NDArray[Any]]:
    """Return a saved array of rows, which all former servers have a part of, divided among `servers`."""
    keys_name = f"{name.rsplit('/', 2)[0] if '/slot/' in name else name.rsplit('/', 1)[0]}/keys"
    keys: Keys = np.concatenate([each[keys_name] for each in arrays])
    whole = np.concatenate([each[name] for each in arrays])
    return [np.ascontiguousarray(whole[part]) for part in split(keys, servers)]
