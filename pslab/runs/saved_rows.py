"""Rows of sparse tables as a checkpoint has them: for a model that is called where no server of its job runs."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from pslab.runs.folder import CHECKPOINTS, RunError
from psserver.checkpoint import CheckpointError, Store
from psserver.checkpoint.rows import load_rows
from pswire.model.initial_rows import initial_rows
from pswire.model.tables import Floats, Keys, TableSpec, tables_from_json, unique
from pswire.nearest import did_you_mean

Reader = Callable[[str, ArrayLike], tuple[Floats, int]]
"""From a table's name and ids, of any shape, to rows with one axis more, and their version."""


def reader(folder: Path) -> Reader:
    """Return what reads rows in the newest complete checkpoint of a run folder, or in that checkpoint's folder.

    An id without a row reads as its initial row, as on a server. Raises RunError; the reader raises ValueError for an
    unknown table.
    """
    named = folder.parent.name == CHECKPOINTS
    store = Store(folder.parent if named else folder / CHECKPOINTS)
    try:
        name = folder.name if named else _newest(store, folder)
        about = store.manifest(name)
        parts = [load_rows(store, name, about, server) for server in range(about.servers)]
    except CheckpointError as error:
        raise RunError(str(error)) from error
    tables = tables_from_json(about.tables)
    if not tables:
        raise RunError(f"{store.root / name}: expected a checkpoint with sparse tables, this model has none")
    # Each server has a range of keys, in the order of servers.
    found: dict[str, tuple[TableSpec, Keys, Floats]] = {}
    for t, spec in enumerate(tables):
        keys, values = (
            np.concatenate([part[f"table/{t}/{what}"] for part in parts]) for what in ("keys", "values")
        )
        found[spec.name] = spec, keys, values

    def read(table: str, ids: ArrayLike) -> tuple[Floats, int]:
        if table not in found:
            raise ValueError(f"no table is named {table!r}{did_you_mean(table, found)}")
        spec, saved, values = found[table]
        keys, inverse = unique(ids)
        rows = initial_rows(spec, keys)
        at = np.searchsorted(saved, keys)
        here = np.flatnonzero(at < saved.size)
        here = here[saved[at[here]] == keys[here]]
        rows[here] = values[at[here]]
        return rows[inverse].reshape(*np.shape(ids), spec.dim), about.version

    return read


def _newest(store: Store, folder: Path) -> str:
    for name in reversed(store.names()):
        try:
            store.manifest(name)
        except CheckpointError:
            continue
        return name
    raise RunError(
        f"{folder}: expected a run folder with a complete checkpoint, or a checkpoint's own folder"
    )
