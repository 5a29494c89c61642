"""Checkpoints of a simulated run, written by the servers' own code within the step that orders them."""

from dataclasses import dataclass
from pathlib import Path

from pslab.simulator.cluster import Cluster
from pslab.simulator.store import ShardStore
from psserver.checkpoint import (
    CheckpointError,
    Disk,
    Store,
    check_same_job,
    choose,
    coordinator_of,
    describe,
    mark_of,
    name_of,
    save_coordinator,
    save_shard,
    settled,
    shards_of,
)
from psserver.checkpoint.rewind import LogIndex, Mark
from psserver.coordinator.outputs import Record
from psserver.records import StateError

FOLDER = "checkpoints"


class Saver:
    """Writes the checkpoints of a cluster with real shards. `problems`: a sentence for each that failed."""

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        keep: int,
        disk: Disk | None = None,
        names: set[str] | None = None,
    ) -> None:
        """`disk`: None for the system's own. `names`: checkpoints of the log that `resume` has kept."""
        self.store, self.problems = Store(folder / FOLDER, disk), list[str]()
        # The log indices of complete checkpoints.
        self.completed: list[int] = []
        self._cluster, self._keep = cluster, keep
        # Checkpoints of this log. Any other in the folder was rolled back, or belongs to another run.
        self._names = names or set()
        cluster.save = self.save

    def save(self, record: Record) -> None:
        """Write one checkpoint. A failure is added to `problems`, and the run goes on."""
        cluster, name = self._cluster, name_of(record.index, self._cluster.terms.job)
        if not isinstance(cluster.store, ShardStore):
            return
        try:
            saved = cluster.coordinator.saved()
            files = save_coordinator(self.store, name, saved)
            for state in cluster.store.states():
                files |= save_shard(self.store, name, settled(state))
            cluster.folder.sync()
            plan = cluster.store.plan
            self.store.complete(describe(record, saved, cluster.terms, cluster.policy, plan, files))
            self.completed.append(record.index)
            self._names.add(name)
            self.store.prune(self._keep, void=lambda other: other not in self._names)
        except CheckpointError as error:
            self.problems.append(f"no checkpoint of version {cluster.coordinator.state.version}: {error}")


@dataclass(frozen=True, slots=True)
class ResumedCluster:
    """Where a cluster goes on. `mark`: the place in the log; `names`: the checkpoints up to there; `passed`: a sentence
    for each that was passed over."""

    mark: Mark
    names: set[str]
    passed: list[str]


def resume(cluster: Cluster, folder: Path, which: str, disk: Disk | None = None) -> ResumedCluster:
    """Have a cluster that is ready to run go on from a checkpoint in `folder`, and truncate the log there.

    Raises CheckpointError and RewindError, with nothing changed in the folder.
    """
    if not isinstance(cluster.store, ShardStore):
        raise CheckpointError("this run simulates time only: there is nothing to go on from")
    index, store = LogIndex(folder), Store(folder / FOLDER, disk)
    checkpoint, passed = choose(store, which, lambda m: index.lacks(m.entry, m.job, m.version))
    about, terms, policy = checkpoint.manifest, cluster.terms, cluster.policy
    check_same_job(about, policy, cluster.proposal.optimizer, terms.workers, terms.seed)
    states = shards_of(checkpoint, cluster.store.plan)
    coordinator = coordinator_of(checkpoint, terms, policy)
    try:
        cluster.store.restore([states[server] for server in sorted(states)], tuple(coordinator.state.folded))
    except StateError as error:
        raise CheckpointError(f"{store.root / name_of(about.entry, about.job)}: {error}") from error
    store.settle(name_of(about.entry, about.job))
    mark = mark_of(index, checkpoint)
    cluster.resume(coordinator, index.rewind(mark))
    return ResumedCluster(mark, index.names(mark), passed)
