"""Rows of the next batch that are read early, while this one is computed on: those that this batch has not.

What this batch has, its own gradients are about to change, and a worker has read it already: if it does not change, it
need not come at all.
"""

import threading
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from pswire.model.adjacent import Cut, cut, joined
from pswire.model.plan import Plan
from pswire.model.rows import ReceivedRows, WantedRows, nothing, same_keys
from pswire.transport.rows import counts_of
from psworker.data.member import Member

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


class EarlyRows:
    """The rows that one server has sent early. One thread reads them; whichever asks first takes them.

    All belong to a membership: rows of another one may be of another history.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        # Held by who takes rows.
        self._guard = threading.Lock()
        self._here: tuple[Member, ReceivedRows] | None = None
        # Whether rows are read early; and then a copy of those of the newest ticket.
        self._wanted = False
        self._have: tuple[Member, ReceivedRows] | None = None

    def keep(self, member: Member, rows: ReceivedRows) -> None:
        """Keep rows of a ticket's version: an early reading asks for none of them."""
        if self._wanted and counts_of(rows.keys):
            self._have = member, kept(rows)

    def read(self, member: Member, rows: WantedRows, pull: Callable[[WantedRows], ReceivedRows]) -> None:
        """Read what the newest ticket has not of these rows by `pull`. Raises as that."""
        known, self._here, self._wanted = self._have, None, True
        if not counts_of(rows):
            return
        if known is None or known[0] is not member:
            self._here = member, pull(rows)
            return
        have, lacks = known[1], lacking(rows, known[1])
        asked = tuple(keys[lack] for keys, lack in zip(rows, lacks, strict=True))
        found = pull(asked) if counts_of(asked) else nothing(self._plan, asked, have.version)
        self._here = member, completed(rows, lacks, found, have)

    def take(self, member: Member, rows: WantedRows) -> ReceivedRows | None:
        """Return what was read early, if it is these rows; nobody else gets them, and they may be written to."""
        with self._guard:
            here, self._here = self._here, None
        if here is None or here[0] is not member or not same_keys(here[1].keys, rows):
            return None
        return here[1]
