"""What must hold of a job that is over, whatever has happened to it."""

from collections import Counter

from pslab.verify.invariants import expect
from pswire.decisions import entries
from tests.coordinator.settings import checked
from tests.recovery.cluster import Cluster


def check(cluster: Cluster, *, second_opinion: bool) -> None:
    """Raises InvariantViolation. `second_opinion`: `ps-lab check` reads the log, too."""
    stopped = cluster.coordinator.state.stopped if cluster.coordinator is not None else None
    expect(stopped is not None and stopped.success, f"the job ends badly: {stopped}")
    indices = [record.index for record in cluster.log]
    expect(indices == list(range(len(indices))), "the log has a gap")
    _tickets_once(cluster)
    _batches_once(cluster)
    for shard in cluster.shards:
        if shard.server not in cluster.lost:
            same = shard.chain == cluster.chains[-1]
            expect(same, f"server {shard.server} has other weights than the log")
    if second_opinion:
        found = checked(cluster.log).violations
        expect(not found, f"ps-lab check: {[str(each) for each in found[:3]]}")


def _tickets_once(cluster: Cluster) -> None:
    """No two grants of any generation have one number, unless the disk has lied about the generation."""
    granted = [
        record.entry.ticket
        for record in (*cluster.log, *cluster.void)
        if isinstance(record.entry, entries.Grant | entries.Initialise)
    ]
    expect(len(granted) == len(set(granted)) or not cluster.storage.trusted, "a ticket's number comes twice")


def _batches_once(cluster: Cluster) -> None:
    """In the log that is left no batch counts twice, and none is missing: but of a worker that did not come back in
    time its last ones, and those of tickets that the policy took away while they were being committed."""
    assert cluster.coordinator is not None
    unfinished = cluster.coordinator.state.roster.unfinished
    committed: Counter[tuple[str, int]] = Counter()
    cancelled: Counter[str] = Counter()
    for record in cluster.log:
        entry = record.entry
        if isinstance(entry, entries.Commit):
            committed[entry.worker, entry.batch] += 1
        elif isinstance(entry, entries.Cancel) and not entry.reason.endswith(" left"):
            cancelled[entry.worker] += 1
    twice = [batch for batch, count in committed.items() if count > 1]
    expect(not twice, f"batches that count twice: {twice}")
    for worker in cluster.workers:
        last = max((batch for name, batch in committed if name == worker.name), default=-1)
        end = last + 1 if worker.name in unfinished else worker.batches
        missing = [batch for batch in range(end) if (worker.name, batch) not in committed]
        expect(
            len(missing) <= cancelled[worker.name],
            f"batches of {worker.name} that do not count: {missing}; {cancelled[worker.name]} were taken away",
        )
