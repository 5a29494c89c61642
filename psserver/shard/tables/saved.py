"""Rows of all tables of a server, as of one version, by the names that they are saved under."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from psserver.shard.tables.snapshot import Snapshot, TableState
from psserver.shard.tables.table import Table

Named = dict[str, NDArray[Any]]
# Bytes of a piece, or a little more. Memory of this size is used again and again; some GB for all rows would come from
# the system and go back to it, and the updates beside that would wait.
PIECE_BYTES: Final = 16 << 20


class SavedRows:
    """Rows of all tables as of one version, to be copied by one thread, once: whole or in pieces."""

    def __init__(self, tables: Sequence[Table], snapshots: Sequence[Snapshot]) -> None:
        """Keep the snapshots of tables to save."""
        self._tables, self.snapshots = tables, snapshots

    def copy(self, since: int | None = None) -> Named:
        """Return rows in arrays of their own, by name.

        `since`: only rows that changed after that version, and `table/<t>/gone`, the keys of those that went.
        """
        found: Named = {}
        for t, snapshot in enumerate(self.snapshots):
            found |= self._gone(t, since) | _named(t, snapshot.copy(since))
        return found

    def pieces(self, since: int | None = None, nbytes: int = PIECE_BYTES) -> Iterator[Named]:
        """Yield the rows that `copy` returns in pieces of about `nbytes`.

        Its array of a name is those of that name in all pieces, one behind the other. A piece may have rows of several
        tables, and the first has all keys that went.
        """
        held = [self._gone(t, since) for t in range(len(self._tables))]
        size = sum(array.nbytes for each in held for array in each.values())
        for t, snapshot in enumerate(self.snapshots):
            for state in snapshot.pieces(since):
                held.append(_named(t, state))
                size += state.nbytes
                if size >= nbytes:
                    yield joined(held)
                    held, size = [], 0
        if held:
            yield joined(held)

    def _gone(self, t: int, since: int | None) -> Named:
        if since is None:
            return {}
        return {f"table/{t}/gone": self._tables[t].gone(since, self.snapshots[t].version)}


def joined(pieces: list[Named]) -> Named:
    """Return the arrays of each name one behind the other. Takes the pieces apart, so that little is held twice.

    Raises ValueError if their shapes do not fit.
    """
    if len(pieces) == 1:
        return pieces[0]
    names = dict.fromkeys(name for piece in pieces for name in piece)
    return {name: np.concatenate([piece.pop(name) for piece in pieces if name in piece]) for name in names}


def _named(t: int, state: TableState) -> Named:
    at = f"table/{t}"
    found: Named = {
        f"{at}/keys": state.keys,
        f"{at}/values": state.values,
        f"{at}/touched": state.touched,
        f"{at}/count": state.count,
    }
    return found | {f"{at}/slot/{name}": slot for name, slot in state.slots.items()}
