"""Updates of tables of one store, written where the rows lie.

`advance` makes the coming version, and saves each row before it changes. An element that would not be finite keeps its
old value and slots; of a rule that sees whole rows, the row does. Ages and counts advance.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from psserver.fast.rows import KeptRows, Slots
from psserver.optimizers.rows import RowStep
from psserver.shard.tables.store import Counts, RowStore
from psserver.shard.tables.table import Contribution, Table, in_blocks
from psserver.shard.tables.undo import Undo
from pswire.model.adjacent import joined
from pswire.model.initial_rows import admitted, initial_rows
from pswire.model.rows import CutRows
from pswire.model.tables import Floats, Keys
from pswire.values import value

Places = NDArray[np.intp]
Contributions = Sequence[tuple[Table, Sequence[Contribution]]]
"""For each table, contributions in the order of the log."""


@value
class RowsPart:
    """The rows of one table in an update: elements [start, stop) of its arrays."""

    table: Table
    keys: Keys
    start: int
    stop: int


@value
class _Asked:
    """Rows that contributions would change. `totals`: their gradients, still to be multiplied by `factor`."""

    parts: tuple[RowsPart, ...]
    slots: Slots
    totals: Floats
    factor: float

    @property
    def store(self) -> RowStore:
        return self.parts[0].table.store

    @property
    def version(self) -> int:
        return self.parts[0].table.version


def _asked(contributions: Contributions, rows: CutRows | None = None) -> _Asked:
    """Return the rows of an update. `rows`: these, if they are one payload's.

    A row's gradient is the sum of factor * gradient over the contributions that have it, times the scale: the bits of a
    dense variable whose other gradients are zero.
    """
    tables = [table for table, _ in contributions]
    keys, totals, factor = _merged(contributions) if rows is None else _alone(contributions, rows)
    whole, ends = tables[0].store.finder.find(tables, keys)
    found = [whole[end - each.size : end] for each, end in zip(keys, ends, strict=True)]
    if any(table.spec.admit < 1 for table in tables):
        keys, totals = list(keys), list(totals)
        for t, table in enumerate(tables):
            # Rows that are not made are not in the update at all.
            stay = (found[t] >= 0) | admitted(table.spec, keys[t], table.version + 1)
            keys[t], totals[t], found[t] = keys[t][stay], totals[t][stay], found[t][stay]
        whole = np.concatenate(found)
    ends = np.cumsum([each.size for each in keys]).tolist()
    parts = tuple(
        RowsPart(table, each, end - each.size, end)
        for table, each, end in zip(tables, keys, ends, strict=True)
    )
    gradients = joined(totals).reshape(-1, tables[0].spec.dim)
    return _Asked(parts, whole, gradients, factor)


def _merged(contributions: Contributions) -> tuple[Sequence[Keys], Sequence[Floats], float]:
    """Return the keys of each table, the sums of their gradients, and the factor that is still to be multiplied."""
    merged = [table.merged(own) for table, own in contributions]
    factors = {factor for keys, _, factor in merged if keys.size} or {1.0}
    factor = factors.pop() if len(factors) == 1 else 1.0
    # Tables in contributions of their own: multiplied here as the step would.
    totals = [total * np.float32(own) if factors else total for _, total, own in merged]
    return [keys for keys, _, _ in merged], totals, factor


def _alone(contributions: Contributions, rows: CutRows) -> tuple[Sequence[Keys], Sequence[Floats], float]:
    """Merge as `_merged` does, of one payload: nothing is summed."""
    factors = (factor for _, own in contributions for *_, factor in own)
    return rows.keys, rows.values, next(factors, 1.0)


def _save(parts: Sequence[RowsPart], slots: Slots) -> None:
    """Save rows for copies under way, before they change."""
    for part in parts:
        part.table.save(part.keys, slots[part.start : part.stop])


def _take_up(version: int, parts: Sequence[RowsPart], slots: Slots, made: Places) -> None:
    """Move tables on to a version that is written. `made`: the places of new rows in `slots`."""
    bounds = np.searchsorted(made, [0, *(part.stop for part in parts)]).tolist()
    for part, begin, end in zip(parts, bounds, bounds[1:], strict=False):
        new, table = made[begin:end], part.table
        table.take_up(version, part.keys[new - part.start], slots[new])


def advance(
    contributions: Contributions,
    scale: float,
    lr_scale: float,
    rows: CutRows | None = None,
) -> tuple[int, dict[str, int]]:
    """Make the coming version of tables of one store. Others may read older versions meanwhile and afterwards.

    Return how many elements of rows it could change, and how many of these each table kept back, by name. `rows`: those
    of all contributions, if these are one payload.
    """
    asked = _asked(contributions, rows)
    parts, kept = asked.parts, _write(asked, RowStep(asked.version, lr_scale, asked.factor, scale))
    elements = parts[-1].stop * parts[0].table.spec.dim
    if kept is None:
        return elements, {}
    return elements, {part.table.spec.name: int(kept[part.start : part.stop].sum()) for part in parts}


def _write(asked: _Asked, step: RowStep) -> Counts | None:
    """Update in place. Return how many elements of each row kept their old values; None if none did.

    Until the end no reader is told of the version, and none finds its new rows.
    """
    store, parts, slots = asked.store, asked.parts, asked.slots
    made = np.flatnonzero(slots < 0)
    _save(parts, slots)
    saved = KeptRows(np.empty((slots.size, store.dim), np.float32), np.zeros(1, np.int64))
    if made.size:
        slots = slots.copy()
        _make(asked, made, slots)
    for part in parts:
        rows = saved.values[part.start : part.stop]
        part.table.publish(Undo(asked.version + 1, part.keys, rows, saved.filled, part.start))
    kept = store.advance(slots, asked.totals, saved, step)
    _take_up(asked.version + 1, parts, slots, made)
    return kept


def _make(asked: _Asked, made: Places, slots: Slots) -> None:
    """Make rows that do not exist yet, of which nobody knows, and write their slots to `slots`."""
    bounds = np.searchsorted(made, [0, *(part.stop for part in asked.parts)]).tolist()
    for part, begin, end in zip(asked.parts, bounds, bounds[1:], strict=False):
        for at in in_blocks(made[begin:end], part.table.spec.dim):
            slots[at] = asked.store.make(initial_rows(part.table.spec, part.keys[at - part.start]))
