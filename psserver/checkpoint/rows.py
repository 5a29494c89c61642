"""Rows of tables in checkpoints: a file for each server with tables, ``server-0-rows.safetensors``.

A file is a series of pieces (`psserver.checkpoint.tensors`), as rows are written while they are being copied.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from numpy.typing import NDArray

from psserver.checkpoint.disk import CheckpointError
from psserver.checkpoint.manifest import FileFacts, Manifest
from psserver.checkpoint.store import Store
from psserver.shard.tables.saved import joined

Arrays = Mapping[str, NDArray[Any]]


def save_rows(store: Store, name: str, server: int, pieces: Iterable[Arrays]) -> dict[str, FileFacts]:
    """Write a server's rows, in at least one piece, and return the facts of their file. Raises CheckpointError."""
    store.begin(name)
    file = f"server-{server}-rows.safetensors"
    return {file: store.put_series(name, file, pieces)}


def row_files(about: Manifest, server: int) -> list[str]:
    """Return the name of a server's file of rows, if it has one."""
    file = f"server-{server}-rows.safetensors"
    return [file] if file in about.files else []


def restore_bytes(about: Manifest, servers: Iterable[int]) -> int:
    """Return the bytes that the rows of these servers take while they are restored: once as they are read, and once in
    their table."""
    return 2 * sum(about.files[file].bytes for server in servers for file in row_files(about, server))


def load_rows(store: Store, name: str, about: Manifest, server: int) -> dict[str, NDArray[Any]]:
    """Read a server's rows; none of a model without tables. Raises CheckpointError."""
    for file in row_files(about, server):
        try:
            return joined(store.series(name, file, about.files[file]))
        except (KeyError, ValueError, IndexError) as error:
            raise CheckpointError(f"{store.root / name / file}: pieces do not fit: {error}") from error
    if about.tables:
        raise CheckpointError(
            f"{store.root / name}: expected rows of tables of server {server}, got no file of them"
        )
    return {}
