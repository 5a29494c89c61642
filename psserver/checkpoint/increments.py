"""Rows of tables in checkpoints: all rows, or those that changed since an earlier one, and keys that are gone.

A checkpoint of a server with tables has files of rows, `server-0-rows-ENTRY.safetensors`. The first has all rows; each
other one has what changed after it. An increment takes up the files before it by hard links: so each checkpoint is
whole by itself, and old ones can be removed in any order. Where files cannot be linked, all rows are written.

A file is a series of pieces (`psserver.checkpoint.tensors`), as rows are written while they are being copied.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from psserver.checkpoint.disk import CheckpointError
from psserver.checkpoint.manifest import FileFacts, Manifest
from psserver.checkpoint.store import Store, entry_of
from psserver.shard.tables.saved import joined

Arrays = Mapping[str, NDArray[Any]]
Named = dict[str, NDArray[Any]]

# Increments before all rows are written again.
MOST: Final = 6
# Rows that are merged at a time.
BLOCK: Final = 1 << 16
# The name of keys that an increment takes away.
GONE = "gone"


@dataclass(frozen=True, slots=True)
class RowFiles:
    """The files of one server's rows in the checkpoint `name`, oldest first. `version`: the last that they hold."""

    name: str
    version: int
    files: dict[str, FileFacts] = field(default_factory=dict)

    @property
    def full(self) -> bool:
        """Whether the next checkpoint should have all rows: reading takes at most twice as long as of one file."""
        sizes = [facts.bytes for facts in self.files.values()]
        return len(sizes) > MOST or sum(sizes[1:]) > sizes[0]


def save_rows(
    store: Store, name: str, server: int, version: int, pieces: Iterable[Arrays], base: RowFiles | None
) -> RowFiles:
    """Write rows as of `version`, in at least one piece. `base`: the files that they are changes of.

    Raises CheckpointError.
    """
    store.begin(name)
    before = {} if base is None else base.files
    for file in before:
        assert base is not None
        store.link(base.name, file, name)
    own = f"server-{server}-rows-{entry_of(name):012d}.safetensors"
    return RowFiles(name, version, {**before, own: store.put_series(name, own, pieces)})


def row_files(about: Manifest, server: int) -> list[str]:
    """Return the names of a server's files of rows, oldest first."""
    return sorted(file for file in about.files if file.startswith(f"server-{server}-rows-"))


def restore_bytes(about: Manifest, servers: Iterable[int]) -> int:
    """Return the bytes that the rows of these servers take while they are restored: once as they are read and merged,
    and once in their table."""
    return 2 * sum(about.files[file].bytes for server in servers for file in row_files(about, server))


def load_rows(store: Store, name: str, about: Manifest, server: int) -> dict[str, NDArray[Any]]:
    """Read a server's rows; none from a checkpoint without files of rows. Raises CheckpointError."""
    found: dict[str, NDArray[Any]] = {}
    for file in row_files(about, server):
        series = store.series(name, file, about.files[file])
        try:
            more = joined(series)
            series.clear()
            found = merged(found, more) if found else more
        except (KeyError, ValueError, IndexError) as error:
            raise CheckpointError(
                f"{store.root / name / file}: has no changes of those before it: {error}"
            ) from error
    return found


def merged(rows: Named, changes: Named) -> Named:
    """Return rows after changes: what is gone is taken out, then changed rows are put in, in the order of keys.

    Takes both apart, one array after the other and in blocks, so that little is held twice.
    """
    found: Named = {}
    for at in sorted({name.rsplit("/", 1)[0] for name in changes if name.endswith("/keys")}):
        old, new = rows[f"{at}/keys"], changes[f"{at}/keys"]
        kept = np.flatnonzero(~np.isin(old, np.concatenate([new, changes[f"{at}/{GONE}"]])))
        places = np.empty(kept.size + new.size, np.intp)
        places[np.argsort(np.concatenate([old[kept], new]))] = np.arange(places.size)
        for name in [name for name in rows if name.startswith(f"{at}/")]:
            before, after = rows.pop(name), changes.pop(name)
            whole = found[name] = np.empty((places.size, *before.shape[1:]), before.dtype)
            _put(whole, places[: kept.size], before, kept)
            _put(whole, places[kept.size :], after, np.arange(new.size))
    return found


def _put(into: NDArray[Any], places: NDArray[np.intp], rows: NDArray[Any], chosen: NDArray[np.intp]) -> None:
    """Put the chosen rows into these places. Raises ValueError for rows of another shape."""
    if rows.shape[1:] != into.shape[1:]:
        raise ValueError(f"expected rows of {list(into.shape[1:])}, got {list(rows.shape[1:])}")
    for start in range(0, chosen.size, BLOCK):
        block = slice(start, start + BLOCK)
        into[places[block]] = rows[chosen[block]]


def usable(store: Store, base: RowFiles | None) -> bool:
    """Return whether the next checkpoint can be an increment of these files."""
    return base is not None and not base.full and store.has(base.name, base.files)
