"""Sync-Switch (Li et al. 2021): a job that begins under sync and goes on under async has the accuracy of the one and
nearly the time of the other."""

import pytest

from pslab.experiment import Experiment
from pslab.simulator.build import build
from pslab.simulator.cluster import Cluster
from tests.promises import promise

pytestmark = pytest.mark.nightly

WORKERS, UPDATES = 8, 36
# Mean of the largest of 8 exponential times: 1 + 1/2 + ... + 1/8.
SLOWEST = sum(1 / k for k in range(1, WORKERS + 1))


def trained(compute: str, policy: str, rate: float, *then: dict[str, object]) -> Cluster:
    """Eight workers with six epochs each of their part of the digits; steps take times of mean 1 by chance."""
    document = {
        "run": {"name": "switch", "seed": 0},
        "cluster": {"workers": WORKERS},
        "policy": {"name": policy, "then": list(then)},
        "optimizer": {"name": "momentum", "learning_rate": rate},
        "job": {"epochs": 6},
        "simulation": {"problem": "mlp", "compute": compute, "batch_size": 8},
    }
    cluster = build(Experiment.parse(document))
    cluster.run()
    assert cluster.coordinator.state.stopped is not None and cluster.coordinator.state.stopped.success
    return cluster


def seconds(cluster: Cluster) -> float:
    assert cluster.coordinator.state.stopped is not None
    return cluster.coordinator.state.stopped.at


@promise(
    "Sync for a quarter of the work, then async: at most 1.3 times async's time where a barrier takes 1.86 "
    "steps (1.20 to 1.26 on three seeds), 1.43 times with exponential workers, whose barrier takes 2.72 (1.25 "
    "to 1.31); within half a point of sync's accuracy (Li et al. 2021, Sync-Switch)."
)
@pytest.mark.parametrize(
    ("compute", "most"),
    [
        # A barrier of these takes 0.5 + SLOWEST / 2, so that a quarter of the work behind it predicts 1.21.
        ("shifted_exponential(0.5, 2)", 1.3),
        # Theory has more than 1.3 here: a quarter of the work at SLOWEST, the rest at 1.
        ("exponential(1)", 0.25 * SLOWEST + 0.75),
    ],
    ids=["shifted", "exponential"],
)
def test_sync_then_async_from_a_quarter_on(compute: str, most: float) -> None:
    """`most`: of async's time."""
    sync = trained(compute, "sync", 0.04)
    assert sync.coordinator.state.version == UPDATES
    # The rate goes with the size of an update.
    change = {"after": f"{UPDATES // 4} versions", "name": "async", "rate": 0.25}
    switched = trained(compute, "sync", 0.04, change)
    stale = trained(compute, "async", 0.01)
    assert seconds(switched) / seconds(stale) <= most
    assert seconds(switched) < 0.8 * seconds(sync)
    assert switched.metrics["accuracy"] >= sync.metrics["accuracy"] - 0.005
