"""Rows of a model's tables, by name and key on one side, by server and table on the other."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pswire.model.adjacent import Cut
from pswire.model.plan import Plan
from pswire.model.tables import BUCKETS, Floats, Keys, check_keys, first_wrong, split, sums, unique
from pswire.nearest import did_you_mean
from pswire.values import value

Rows = Sequence[tuple[Keys, Floats]]
"""Of each table, in the order of the plan: sorted unique keys, and a float32 row for each, [n, dim]."""


class CutRows(tuple[tuple[Keys, Floats], ...]):
    """Rows whose keys are parts of one array, and whose numbers are parts of another: `keys` and `values`.

    A step goes through all tables many times; what lies in one array is gone through once.
    """

    keys: Cut
    values: Cut

    @classmethod
    def of(cls, keys: Cut, values: Cut) -> "CutRows":
        """Return the rows of tables with these keys and these numbers."""
        made = cls(zip(keys, values, strict=True))
        made.keys, made.values = keys, values
        return made


WantedRows = tuple[Keys, ...]
"""Of each table, in the order of the plan: sorted unique keys of rows to read."""
KeysByName = Mapping[str, Keys]
"""Of some tables, by name: sorted unique keys (`pswire.model.tables.unique`)."""
RowsByName = Mapping[str, tuple[Keys, Floats]]
"""Of some tables, by name: sorted unique keys, and a float32 row for each, [n, dim]."""

NO_ROWS: Final[Mapping[str, Any]] = {}
_NONE: Keys = np.zeros(0, np.uint64)


@value
class ReceivedRows:
    """One server's rows of each table at a version, [n, dim], and the keys by which they were asked for."""

    keys: WantedRows
    rows: Sequence[Floats]
    version: int


def keys_of(rows: Rows) -> WantedRows:
    """Return the keys of each table."""
    return rows.keys if isinstance(rows, CutRows) else tuple(keys for keys, _ in rows)


def values_of(rows: Rows) -> Sequence[Floats]:
    """Return the rows of each table."""
    return rows.values if isinstance(rows, CutRows) else [values for _, values in rows]


class RowLayout:
    """Divides rows among the servers of a plan, and joins what they return."""

    def __init__(self, plan: Plan) -> None:
        self._tables, self._servers = plan.tables, len(plan.shards)
        # Of the last calls of `wanted`, newest first: a step asks several times for its keys and for the next one's.
        self._asked: list[tuple[dict[str, Keys], list[WantedRows]]] = []
        self._numbers = {table.name: number for number, table in enumerate(plan.tables)}

    def number(self, name: str) -> int:
        """Return the number of a table. Raises ValueError unless the plan has one of that name."""
        if name not in self._numbers:
            known = list(self._numbers)
            if not known:
                raise ValueError(f"no table is named {name!r}: connect(tables=...) names the model's tables")
            raise ValueError(f"no table is named {name!r}{did_you_mean(name, known)}")
        return self._numbers[name]

    def wanted(self, keys: KeysByName) -> list[WantedRows]:
        """Return the keys of each table, for each server. Raises ValueError for unknown names and unsorted keys."""
        for before, found in self._asked:
            if before.keys() == keys.keys() and all(before[name] is keys[name] for name in keys):
                return found
        for name in keys:
            self.number(name)
        wrong = first_wrong(list(keys.values()), 0, BUCKETS)
        if wrong is not None:
            name, each = list(keys.items())[wrong]
            raise ValueError(
                f"table {name!r}: {check_keys(each, 0, BUCKETS)}: pswire.model.tables.unique makes such keys of ids"
            )
        whole = [keys.get(table.name, _NONE) for table in self._tables]
        parts = [split(each, self._servers) for each in whole]
        found = [
            tuple(each[part[server]] for each, part in zip(whole, parts, strict=True))
            for server in range(self._servers)
        ]
        self._asked = [(dict(keys), found), *self._asked[:1]]
        return found

    def rows(self, rows: RowsByName) -> list[Rows]:
        """Return keys and rows of each table, for each server; empty for a server without any.

        Raises ValueError for unknown names, unsorted keys, and rows of another shape or dtype.
        """
        keys = self.wanted({name: each for name, (each, _) in rows.items()})
        for name, (each, values) in rows.items():
            expected = (each.size, self._tables[self._numbers[name]].dim)
            if values.shape != expected or values.dtype != np.float32:
                raise ValueError(
                    f"table {name!r}: expected float32 of shape {expected}, one row for each key, got "
                    f"{values.dtype} of shape {values.shape}"
                )
        divided = []
        for table in self._tables:
            if table.name in rows:
                each, values = rows[table.name]
                divided.append([values[part] for part in split(each, self._servers)])
            else:
                divided.append([np.zeros((0, table.dim), np.float32)] * self._servers)
        return [
            [(part, values[server]) for part, values in zip(own, divided, strict=True)]
            if any(each.size for each in own)
            else ()
            for server, own in enumerate(keys)
        ]

    def joined(self, keys: KeysByName, received: Sequence[ReceivedRows]) -> dict[str, Floats]:
        """Return the rows of `keys` in their order, from what each server has returned for `wanted(keys)`."""
        return {
            name: np.concatenate([each.rows[self._numbers[name]] for each in received])
            if len(received) > 1
            else received[0].rows[self._numbers[name]]
            for name in keys
        }

    def summed(self, rows: Mapping[str, tuple[ArrayLike, ArrayLike]]) -> dict[str, tuple[Keys, Floats]]:
        """Return gradients of ids, of which some may be there several times, as sums by key.

        Raises ValueError for gradients that are not one row for each id, TypeError for ids that are not whole numbers.
        """
        found = {}
        for name, (ids, gradients) in rows.items():
            dim = self._tables[self.number(name)].dim
            keys, inverse = unique(ids)
            values: NDArray[np.float32] = np.asarray(gradients, np.float32)
            if values.size != inverse.size * dim:
                raise ValueError(
                    f"table {name!r}: expected a gradient of {dim} numbers for each of {inverse.size} ids, got shape "
                    f"{values.shape}"
                )
            found[name] = keys, sums(inverse, values.reshape(-1, dim), keys.size)
        return found


def nothing(layout: Plan, keys: WantedRows, version: int) -> ReceivedRows:
    """Return the answer to no keys at all."""
    return ReceivedRows(keys, [np.zeros((0, table.dim), np.float32) for table in layout.tables], version)


def same_keys(one: WantedRows, other: WantedRows) -> bool:
    """Return True if both ask for the same rows."""
    return one is other or (len(one) == len(other) and all(map(np.array_equal, one, other)))
