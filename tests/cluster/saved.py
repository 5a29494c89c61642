"""What is saved of a run that goes on."""

from contextlib import suppress

from psserver.checkpoint import CheckpointError, Store
from tests.cluster.cluster import Cluster


def saved(cluster: Cluster, job: str = "") -> list[int]:
    """Versions of complete checkpoints. `job`: the folder of a later one."""
    store = Store(cluster.out / job / "checkpoints")
    found = []
    for name in store.names():
        # One that is being written, or removed by now.
        with suppress(CheckpointError):
            found.append(store.manifest(name).version)
    return found
