"""The lookups of layers in sparse tables, and the batches whose ids are known. Nothing here loads a framework.

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

from pswire.model.adjacent import joined
from pswire.model.tables import Floats, Keys, TableSpec, unique, uniques
from psworker.backends import ModelError
from psworker.local import ReadRows

# From a table's name and ids, of any shape, to rows with one axis more, and their version.
Reader = Callable[[str, ArrayLike], tuple[Floats, int]]


@dataclass(slots=True, eq=False)
class LayerLookups:
    """The lookups of one layer. `mask_id`: an id that has no row. `reader`: answers where no training step does."""

    table: TableSpec
    mask_id: int | None = None
    reader: Reader | None = None

    def readable(self) -> Reader:
        """Return the reader. Raises ModelError where there is none."""
        if self.reader is None:
            raise ModelError(
                f"table {self.table.name!r}: its rows are on parameter servers, and nobody reads them here: call the "
                "model within distribute() or a Job, or name a reader, as in psworker.keras.read_rows(model, "
                "session.lookup) or pslab.runs.rows(FOLDER) of a checkpoint; export() of distribute() makes a plain "
                "Keras model"
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
Answer = Callable[[LayerLookups, Any], Any]
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


def remote_of(layer: Any) -> LayerLookups | None:
    """Return what a layer looks up, or None."""
    found = getattr(layer, "remote", None)
    return found if isinstance(found, LayerLookups) else None


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


class TableGroup(NamedTuple):
    """Tables whose rows lie one behind the other in a step, as one variable. `trained`: they get a gradient."""

    tables: tuple[TableSpec, ...]
    dim: int
    trained: bool


class Fed(NamedTuple):
    """The input of a step over tables, by group.

    `rows`: [n, dim]. `places`: for each id of all lookups, in the order in which the step makes them, where its row is.
    `sizes`: the number of ids of each lookup, [1, lookups].
    """

    batch: Any
    rows: tuple[Any, ...]
    places: tuple[Any, ...]
    sizes: tuple[Any, ...]


@dataclass(frozen=True)
class LookedUp:
    """A batch and what it looks up.

    `keys`: of each table, sorted and unique. `places` and `sizes`: as of `Fed`. `rows`: one for each key, once they are
    pulled.
    """

    batch: Any
    groups: tuple[TableGroup, ...] = field(repr=False)
    keys: Mapping[str, Keys]
    places: tuple[NDArray[np.int32], ...]
    sizes: tuple[NDArray[np.int32], ...]
    rows: Mapping[str, Floats] | None = None

    def fed(self) -> Fed:
        """Return what the step is given; zeros where rows are not pulled, for a rehearsal."""
        return Fed(self.batch, tuple(map(self._rows_of, self.groups)), self.places, self.sizes)

    def _rows_of(self, group: TableGroup) -> Floats:
        count = sum(self.keys[table.name].size for table in group.tables)
        if self.rows is None or not count:
            # One row at least: lookups that are masked read some row.
            return np.zeros((max(count, 1), group.dim), np.float32)
        if len(group.tables) == 1:
            return self.rows[group.tables[0].name]
        return joined([self.rows[table.name] for table in group.tables]).reshape(-1, group.dim)

    def gradients(self, found: Iterable[Floats]) -> dict[str, tuple[Keys, Floats]]:
        """Return gradients by table with their keys, from one for each group that is trained."""
        named: dict[str, tuple[Keys, Floats]] = {}
        for group, rows in zip((each for each in self.groups if each.trained), found, strict=True):
            start = 0
            for table in group.tables:
                keys = self.keys[table.name]
                if keys.size:
                    named[table.name] = keys, rows[start : start + keys.size]
                start += keys.size
        return named


def looked_up(
    batch: Any, groups: tuple[TableGroup, ...], lookups: Sequence[tuple[LayerLookups, NDArray[np.int64]]]
) -> LookedUp:
    """Return a batch with the keys of its lookups, (what is looked up, flat ids), in the order of the step."""
    ids: dict[str, list[NDArray[np.int64]]] = {}
    for remote, each in lookups:
        own = each if remote.mask_id is None else each[each != remote.mask_id]
        ids.setdefault(remote.table.name, []).append(own)
    keys: dict[str, Keys] = {}
    # By table: where each id's row is in its group, of ids that are not masked; they are taken lookup by lookup.
    rest: dict[str, NDArray[np.int32]] = {}
    tables = [table.name for group in groups for table in group.tables]
    several = [ids.get(name, [np.zeros(0, np.int64)]) for name in tables]
    found = iter(uniques([each[0] if len(each) == 1 else np.concatenate(each) for each in several]))
    for group in groups:
        start = 0
        for table in group.tables:
            keys[table.name], inverse = next(found)
            rest[table.name] = inverse + np.int32(start)
            start += keys[table.name].size
    number = {table.name: at for at, group in enumerate(groups) for table in group.tables}
    places: list[list[NDArray[np.int32]]] = [[] for _ in groups]
    for remote, each in lookups:
        name = remote.table.name
        # Any row stands for a masked one.
        place = np.zeros(each.size, np.int32)
        kept = slice(None) if remote.mask_id is None else each != remote.mask_id
        count = place[kept].size
        place[kept], rest[name] = rest[name][:count], rest[name][count:]
        places[number[name]].append(place)
    return LookedUp(
        batch,
        groups,
        keys,
        tuple(np.concatenate(each or [np.zeros(0, np.int32)]) for each in places),
        tuple(np.array([[place.size for place in each]], np.int32) for each in places),
    )
