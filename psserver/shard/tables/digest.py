"""A cheap digest of a table, by which two copies of it are compared every now and then.

It covers the number of rows, and all that there is of the rows in some buckets, which take turns: in a small table all
of them, in a large one so many that about `ROWS` rows lie in them. A difference in any other row shows in a later turn.
"""

import zlib
from typing import Final

import numpy as np

from psserver.shard.tables.table import Table
from pswire.model.tables import BUCKETS

#: Rows that a digest looks at, about.
ROWS: Final = 1 << 13


def turns(table: Table) -> int:
    """Return after how many digests all rows of the table have been looked at."""
    return min(max(1, -(-table.count // ROWS)), BUCKETS)


def digest_of(table: Table, turn: int) -> int:
    """Return a CRC-32 of the newest version. `turn`: the number of this digest, from which its buckets follow.

    Others may read meanwhile, none may write.
    """
    of = turns(table)
    buckets = None if of == 1 else np.arange(BUCKETS) % of == turn % of
    state = table.state(buckets=buckets)
    found = zlib.crc32(table.count.to_bytes(8, "little"))
    for array in (state.keys, state.values, *state.slots.values(), state.touched, state.count):
        found = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, found)
    return found
