"""Rows of all tables of a server, as of one version, by the names that they are saved under."""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from psserver.shard.tables.snapshot import Snapshot
from psserver.shard.tables.table import Table


class SavedRows:
    """Rows of all tables as of one version, to be copied by one thread, once."""

    def __init__(
        self,
        tables: Sequence[Table],
        snapshots: Sequence[Snapshot],
        waiting: Sequence[tuple[NDArray[Any], ...] | None],
    ) -> None:
        """Keep the snapshots of tables to save. `waiting`: ids without a row."""
        self._tables, self.snapshots, self._waiting = tables, snapshots, waiting

    def copy(self, since: int | None = None) -> dict[str, NDArray[Any]]:
        """Return rows in arrays of their own, by name.

        `since`: only those that changed after that version, and `table/<t>/gone`, the keys of those that went.
        """
        found: dict[str, NDArray[Any]] = {}
        for t, (table, snapshot) in enumerate(zip(self._tables, self.snapshots, strict=True)):
            at, state = f"table/{t}", snapshot.copy(since)
            if since is not None:
                found[f"{at}/gone"] = table.gone(since, snapshot.version)
            found |= {
                f"{at}/keys": state.keys,
                f"{at}/values": state.values,
                f"{at}/touched": state.touched,
                f"{at}/count": state.count,
            }
            found |= {f"{at}/slot/{name}": slot for name, slot in state.slots.items()}
            waiting = self._waiting[t]
            if waiting is not None:
                found |= dict(zip(waiting_names(t), waiting, strict=True))
        return found


def waiting_names(t: int) -> list[str]:
    """Return the names of arrays of ids without a row of table t."""
    return [f"waiting/{t}/{part}" for part in ("keys", "count", "touched")]
