"""What layers look up in sparse tables, and the batches whose ids are known. Nothing here loads a framework.

A layer that looks rows up has an attribute `remote`. While a step is traced or runs, and while the ids of a batch are
found, somebody answers all lookups of the thread (`answered_by`); at other times the layer's `reader` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pswire.model.tables import Floats, Keys, TableSpec, unique
from psworker.backends import ModelError
from psworker.local import ReadRows

# From a table's name and ids, of any shape, to rows with one axis more, and their version.
Reader = Callable[[str, ArrayLike], tuple[Floats, int]]


@dataclass(slots=True, eq=False)
class Remote:
    """What one layer looks up. `mask_id`: an id that has no row. `size`: ids are from 0 to below it; None for any.
    `reader`: answers where no training step does."""

    table: TableSpec
    mask_id: int | None = None
    size: int | None = None
    reader: Reader | None = None

    def readable(self) -> Reader:
        """Return the reader. Raises ModelError where there is none."""
        if self.reader is None:
            raise ModelError(
                f"table {self.table.name!r}: its rows are on parameter servers, and nobody reads them here: call the "
                "model within distribute() or a Job, or name a reader, as in psworker.keras.read_rows(model, "
                "session.lookup); psworker.keras.export makes a plain Keras model"
            )
        return self.reader

    def read(self, ids: NDArray[Any]) -> Floats:
        """Return rows from the reader, [*, dim]. Raises ModelError without one."""
        wanted, inverse = np.unique(np.asarray(ids, np.int64), return_inverse=True)
        rows, _ = self.readable()(self.table.name, wanted)
        return np.asarray(rows, np.float32)[inverse.reshape(-1)].reshape(*ids.shape, self.table.dim)


def by_keys(read: ReadRows) -> Reader:
    """Return a reader by ids of one by sorted unique keys, whose version nobody knows."""

    def reader(name: str, ids: ArrayLike) -> tuple[Floats, int]:
        keys, inverse = unique(ids)
        return read({name: keys})[name][inverse], 0

    return reader


# From what a layer looks up and its ids, of the framework, to its rows.
Answer = Callable[[Remote, Any], Any]
_ANSWER: ContextVar[Answer | None] = ContextVar("answer", default=None)


def answer() -> Answer | None:
    """Return who answers the lookups of this thread now; None for the layers' readers."""
    return _ANSWER.get()


@contextmanager
def answered_by(answer: Answer) -> Iterator[None]:
    """Let `answer` answer all lookups of this thread for the time of the block."""
    token = _ANSWER.set(answer)
    try:
        yield
    finally:
        _ANSWER.reset(token)


def remote_of(layer: Any) -> Remote | None:
    """Return what a layer looks up, or None."""
    found = getattr(layer, "remote", None)
    return found if isinstance(found, Remote) else None


def tables_of(layers: Iterable[Any]) -> tuple[TableSpec, ...]:
    """Return the tables of layers, each once. Raises ModelError for two of one name that differ."""
    found: dict[str, TableSpec] = {}
    for table in (remote.table for remote in map(remote_of, layers) if remote is not None):
        if found.setdefault(table.name, table) != table:
            raise ModelError(
                f"two layers share the table {table.name!r} and describe it differently: {found[table.name].to_json()} "
                f"and {table.to_json()}"
            )
    return tuple(found.values())


class Fed(NamedTuple):
    """What a step over tables is given: for each table, rows and the positions among them that lookups want."""

    batch: Any
    rows: tuple[Any, ...]
    inverses: tuple[Any, ...]


@dataclass(frozen=True)
class LookedUp:
    """A batch and what it looks up.

    `keys`: of each table, sorted and unique. `inverses`: for each id of all lookups, in the order in which the step
    makes them, the position of its key. `rows`: one for each key, once they are pulled.
    """

    batch: Any
    tables: tuple[TableSpec, ...] = field(repr=False)
    keys: Mapping[str, Keys]
    inverses: Mapping[str, NDArray[np.int32]]
    rows: Mapping[str, Floats] | None = None

    def fed(self) -> Fed:
        """Return what the step is given; zeros where rows are not pulled, for a rehearsal."""
        return Fed(self.batch, tuple(map(self._rows_of, self.tables)), tuple(self.inverses.values()))

    def _rows_of(self, table: TableSpec) -> Floats:
        count = self.keys[table.name].size
        if self.rows is None or not count:
            # One row at least: lookups that are masked read some row.
            return np.zeros((max(count, 1), table.dim), np.float32)
        return self.rows[table.name]

    def gradients(self, found: Mapping[str, Floats]) -> dict[str, tuple[Keys, Floats]]:
        """Return gradients by table with their keys, of tables that have any in this batch."""
        return {name: (self.keys[name], each) for name, each in found.items() if self.keys[name].size}


def looked_up(
    batch: Any, tables: Sequence[TableSpec], lookups: Iterable[tuple[Remote, NDArray[np.int64]]]
) -> LookedUp:
    """Return a batch with the keys of its lookups, (what is looked up, flat ids), in the order of the step.

    Raises ModelError for an id that a layer does not have.
    """
    ids: dict[str, list[NDArray[np.int64]]] = {}
    kept: dict[str, list[NDArray[np.bool_]]] = {}
    for remote, each in lookups:
        if remote.size is not None and each.size and not 0 <= each.min() <= each.max() < remote.size:
            raise ModelError(
                f"layer {remote.table.name!r}: expected ids from 0 to {remote.size - 1}, got {each.min()} to "
                f"{each.max()}"
            )
        ids.setdefault(remote.table.name, []).append(each)
        masked = np.zeros(each.shape, bool) if remote.mask_id is None else each == remote.mask_id
        kept.setdefault(remote.table.name, []).append(~masked)
    keys: dict[str, Keys] = {}
    inverses: dict[str, NDArray[np.int32]] = {}
    for table in tables:
        all_ids = np.concatenate(ids.get(table.name, [np.zeros(0, np.int64)]))
        mask = np.concatenate(kept.get(table.name, [np.zeros(0, bool)]))
        if mask.all():
            keys[table.name], inverses[table.name] = unique(all_ids)
            continue
        keys[table.name], positions = unique(all_ids[mask])
        inverses[table.name] = np.zeros(all_ids.size, np.int32)
        inverses[table.name][mask] = positions
    return LookedUp(batch, tuple(tables), keys, inverses)
