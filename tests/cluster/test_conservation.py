"""The conservation of staleness on logs of real runs: exact integers, whatever the speeds and the chances.

While n workers hold tickets, T updates make sum of staleness + ages in flight = (n - w) T, where w is how many
of them wait with what they committed when an update is made: 1 for async and K-batch-async, K for K-async, all
n for sync, whose staleness is therefore 0.
"""

from pathlib import Path

import pytest

from pslab.check.conservation import StalenessGroup, conservation
from pswire.v1 import coordinator_pb2 as pb
from tests.cluster.cluster import Cluster

pytestmark = pytest.mark.cluster

WORKERS = 4
BATCHES = 60

BOUNDED = ("--policy", "bounded", "--set", "policy.aggregate=2", "--set", "policy.max_staleness=3")
K_ASYNC = ("--policy", "tests.cluster.k_async:KAsync", "--set", "policy.k=3")
RUNS = {
    "async": (("--policy", "async"), 1),
    "bounded": (BOUNDED, 1),
    "k-async": (K_ASYNC, 3),
    "sync": (("--policy", "sync"), WORKERS),
    "gap-aware, dana-zero": (("--policy", "gap-aware", "--optimizer", "dana-zero"), 1),
    "trimmed-mean": (("--policy", "trimmed-mean"), WORKERS),
}


@pytest.fixture
def end_of_wait(tmp_path: Path) -> Path:
    """Workers compute nothing before a test touches it."""
    return tmp_path / "end-of-wait"


@pytest.mark.parametrize("policy", RUNS)
def test_staleness_is_conserved(cluster: Cluster, end_of_wait: Path, policy: str) -> None:
    flags, waiting = RUNS[policy]
    cluster.start_servers(2, *flags, "--workers", str(WORKERS))
    for index in range(WORKERS):
        # Up to ten times slower than the fastest.
        pace = ("--seconds", str(0.001 + 0.003 * index))
        waits = ("--gate", "0", str(end_of_wait))
        cluster.start_worker("--task-index", str(index), "--batches", str(BATCHES), *pace, *waits)
    # Whoever is slow to begin: nobody is done before all are at work.
    cluster.wait_for(all_computing, "all workers to hold tickets")
    end_of_wait.touch()
    run = cluster.wait_end(worker_codes=[0] * WORKERS)
    law = conservation(run.decisions())
    print(law, *law.groups, sep="\n")
    # The general form, over the whole run with its beginning and end.
    assert law.aged == law.applied + law.dropped + law.given_up + law.in_flight
    # The special form, in each stretch with the same number of workers at work.
    assert all(group.growth == (group.workers - group.waiting) * group.updates for group in law.groups)
    full = all_holding(law.groups, waiting)
    assert full.growth == (WORKERS - waiting) * full.updates
    assert full.updates > 0
    if waiting == WORKERS:
        assert (law.aged, law.applied, full.growth) == (0, 0, 0)
    else:
        assert law.applied > 0


def all_computing(status: pb.StatusReply) -> bool:
    return [worker.state for worker in status.workers] == ["computing"] * WORKERS


def all_holding(groups: tuple[StalenessGroup, ...], waiting: int) -> StalenessGroup:
    """The stretch in which all workers were at work."""
    return next(group for group in groups if (group.workers, group.waiting) == (WORKERS, waiting))
