"""Rows as open tickets read them: what a compensator compares with the newest, and what a saved state has of them.

Where an update compensates, undo records last until no open ticket began before them. A state has them as

    undo/<version>/<t>/keys, values   rows that table t's update to a version changed, as they were before it
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psserver.fast import Backend
from psserver.shard import arithmetic
from psserver.shard.tables.table import Table
from psserver.shard.tables.undo import Undo
from pswire.model.adjacent import cut
from pswire.model.rows import CutRows, Rows, keys_of, values_of
from pswire.model.tables import Floats

UNDO = "undo"
"""The first part of the names of these arrays."""


def corrected(
    rows: Rows, now: Sequence[Floats], base: Sequence[Floats], strength: float, backend: Backend
) -> Rows:
    """Return a contribution's rows after `psserver.shard.compensators.Taylor`. `now`, `base`: the rows of its keys."""
    gradients, newest, older = (_flat(each) for each in (values_of(rows), now, base))
    arithmetic.compensate(gradients, newest, older, strength, backend)
    keys = keys_of(rows)
    flat = cut(gradients, [values.size for values in values_of(rows)])
    values = [each.reshape(own.shape) for each, own in zip(flat, values_of(rows), strict=True)]
    whole = np.concatenate(keys) if len(keys) else np.zeros(0, np.uint64)
    return CutRows.of(cut(whole, [each.size for each in keys]), type(flat).of(gradients, values))


def _flat(parts: Sequence[Floats]) -> Floats:
    """Return all numbers in an array of its own."""
    return np.concatenate([np.zeros(0, np.float32), *(part.reshape(-1) for part in parts)])


def saved(tables: Sequence[Table], oldest: int) -> dict[str, NDArray[Any]]:
    """Return by name what makes versions from `oldest` on of the newest one; nothing of it changes any more."""
    found: dict[str, NDArray[Any]] = {}
    for t, table in enumerate(tables):
        for version in range(oldest + 1, table.version + 1):
            record = table.undone(version)
            found |= {f"{UNDO}/{version}/{t}/keys": record.keys, f"{UNDO}/{version}/{t}/values": record.rows}
    return found


def needed(bases: Mapping[int, int], version: int) -> range:
    """Return the versions whose records a state at `version` has, for tickets that began at `bases`."""
    return range(min(bases.values(), default=version) + 1, version + 1)


def records(t: int, arrays: Mapping[str, NDArray[Any]], versions: range) -> tuple[Undo, ...]:
    """Return table t's records from a checked state."""
    named = ((version, f"{UNDO}/{version}/{t}") for version in versions)
    return tuple(
        Undo.of(version, arrays[f"{at}/keys"].copy(), arrays[f"{at}/values"].copy()) for version, at in named
    )
