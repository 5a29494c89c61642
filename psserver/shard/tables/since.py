"""Reading only what a reader lacks: it has rows of an earlier version, and wants those of a later one.

A row that no update has touched since then is as it was. Ages are read before values, and an update writes a row's age
after its values, so an update under way makes a row come that need not, and never the other way round.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from psserver.shard.tables.table import Table, read_slots
from pswire.model.tables import Floats, Keys

Chosen = NDArray[np.bool_]


def read_since(
    tables: Sequence[Table], keys: Sequence[Keys], version: int, since: int
) -> tuple[list[Chosen], Sequence[Floats]]:
    """Return which rows of each table may differ between two versions, and these rows at `version`, [m, dim].

    The tables are of one store. All rows come if `since` is the later version. Makes no row. Raises ValueError for a
    version that cannot be read.
    """
    for table in tables:
        table.check_readable(version)
    store = tables[0].store
    slots, ends = store.finder.find(tables, keys)
    changed = store.ages(slots)[:, 0] > since
    for table, end, each in zip(tables, ends, keys, strict=True):
        part = slice(end - each.size, end)
        # After the ages: where rows have gone after the version, a slot may be another row's by now.
        if since > version or table.gone_at > version:
            changed[part] = True
        elif table.gone_at > since:
            # One that has no row may have had one.
            changed[part] |= slots[part] < 0
    chosen = [changed[end - each.size : end] for end, each in zip(ends, keys, strict=True)]
    asked = [each[own] for each, own in zip(keys, chosen, strict=True)]
    own_ends = np.cumsum([each.size for each in asked]).tolist()
    return chosen, read_slots(tables, asked, slots[changed], own_ends, version)
