"""Which rows of the next batch are read early: those that this batch has not.

What this batch has, its own gradients are about to change, and a worker has read it already: if it does not change, it
need not come at all.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pswire.model.adjacent import Cut, cut, joined
from pswire.model.rows import ReceivedRows, WantedRows

Lacks = Sequence[NDArray[np.bool_]]
"""Of each table, which of the wanted rows are not among others."""


def lacking(wanted: WantedRows, have: ReceivedRows) -> Lacks:
    """Return which wanted rows are not among those that somebody has."""
    return [
        known[np.minimum(np.searchsorted(known, keys), known.size - 1)] != keys
        if known.size
        else np.ones(keys.size, bool)
        for keys, known in zip(wanted, have.keys, strict=True)
    ]


def kept(rows: ReceivedRows) -> ReceivedRows:
    """Return a copy of rows: who has received them may write to them."""
    whole = joined(rows.rows).copy()
    parts = zip(cut(whole, [each.size for each in rows.rows]), rows.rows, strict=True)
    return ReceivedRows(
        rows.keys, Cut.of(whole, [part.reshape(each.shape) for part, each in parts]), rows.version
    )


def completed(wanted: WantedRows, lacks: Lacks, found: ReceivedRows, have: ReceivedRows) -> ReceivedRows:
    """Return the wanted rows, in memory of their own, from those that were lacking and those that somebody has.

    Their version is the older of both: whatever has not been updated since is as it is here.
    """
    dims = [rows.shape[1] for rows in have.rows]
    sizes = [keys.size * dim for keys, dim in zip(wanted, dims, strict=True)]
    whole = np.empty(sum(sizes), np.float32)
    parts = [part.reshape(-1, dim) for part, dim in zip(cut(whole, sizes), dims, strict=True)]
    for t, (keys, lack, part) in enumerate(zip(wanted, lacks, parts, strict=True)):
        part[lack] = found.rows[t]
        part[~lack] = have.rows[t][np.searchsorted(have.keys[t], keys[~lack])]
    return ReceivedRows(wanted, Cut.of(whole, parts), min(found.version, have.version))
