"""Rows of all tables of a server, as of one version, by the names that they are saved under."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from psserver.shard.tables.snapshot import Snapshot, TableState

Named = dict[str, NDArray[Any]]
# Bytes of a piece, or a little more. Memory of this size is used again and again; some GB for all rows would come from
# the system and go back to it, and the updates beside that would wait.
PIECE_BYTES: Final = 16 << 20


class SavedRows:
    """Rows of all tables as of one version, to be copied by one thread, once: whole or in pieces."""

    def __init__(self, snapshots: Sequence[Snapshot]) -> None:
        """Keep the snapshots of tables to save."""
        self.snapshots = snapshots

    def copy(self) -> Named:
        """Return rows in arrays of their own, by name."""
        found: Named = {}
        for t, snapshot in enumerate(self.snapshots):
            found |= _named(t, snapshot.copy())
        return found

    def pieces(self, nbytes: int = PIECE_BYTES) -> Iterator[Named]:
        """Yield the rows that `copy` returns in pieces of about `nbytes`.

        Its array of a name is those of that name in all pieces, one behind the other. A piece may have rows of several
        tables.
        """
        held, size = list[Named](), 0
        for t, snapshot in enumerate(self.snapshots):
            for state in snapshot.pieces():
                held.append(_named(t, state))
                size += state.nbytes
                if size >= nbytes:
                    yield joined(held)
                    held, size = [], 0
        if held:
            yield joined(held)


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
