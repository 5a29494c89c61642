"""Small checkpoints of two servers, with contents that name what they are of."""

import random
from pathlib import Path

import numpy as np

from psserver.checkpoint import CheckpointError, Disk, Manifest, Store
from psserver.checkpoint.manifest import FORMAT, FileFacts
from psserver.checkpoint.store import name_of
from pswire.model.variables import VariableSpec

ROOT = Path("/run/checkpoints")
JOB = "0a1b2c3d"
SERVERS = 2


def arrays_of(entry: int, server: int) -> dict[str, np.ndarray]:
    dice = np.random.default_rng([entry, server])
    return {
        f"version/{entry}": dice.normal(size=5).astype(np.float32),
        "slot/m": dice.normal(size=(2, 3)).astype(np.float32),
        "memory/none": np.empty((0,), np.float32),
        "constant/one": np.float32(entry).reshape(()),
    }


def facts_of(entry: int, server: int) -> dict[str, object]:
    return {"entry": entry, "server": server, "text": "ä" * (entry % 7)}


def manifest_of(entry: int, files: dict[str, FileFacts]) -> Manifest:
    return Manifest(
        FORMAT, JOB, entry, entry // 10, entry / 4, SERVERS, 3, 0, "plan",
        (VariableSpec("w", (4,)),), [], {"name": "sync"}, {"name": "sgd", "learning_rate": 0.1}, {}, files,
    )  # fmt: skip


def write(store: Store, entry: int) -> str:
    """As servers do: parts in any order, then the manifest."""
    name = name_of(entry, JOB)
    files: dict[str, FileFacts] = {}
    order = list(range(SERVERS))
    random.Random(entry).shuffle(order)
    for server in order:
        store.begin(name)
        file, json = f"server-{server}.safetensors", f"server-{server}.json"
        files[file] = store.put_arrays(name, file, arrays_of(entry, server))
        files[json] = store.put_json(name, json, facts_of(entry, server))
    store.complete(manifest_of(entry, files))
    return name


def read(store: Store, name: str) -> int:
    """Its entry. Every byte of it is as it was written, or CheckpointError."""
    about = store.verify(name)
    assert about == manifest_of(about.entry, about.files), "another manifest"
    for server in range(SERVERS):
        file, json = f"server-{server}.safetensors", f"server-{server}.json"
        expected, found = arrays_of(about.entry, server), store.arrays(name, file, about.files[file])
        assert found.keys() == expected.keys()
        for key, values in expected.items():
            assert found[key].tobytes() == values.tobytes() and found[key].shape == values.shape, key
        assert store.json(name, json, about.files[json]) == facts_of(about.entry, server)
    return about.entry


def usable(disk: Disk) -> list[int]:
    """The entries of all checkpoints that can be used, oldest first."""
    store, found = Store(ROOT, disk), []
    for name in store.names():
        try:
            found.append(read(store, name))
        except CheckpointError:
            continue
    return found
