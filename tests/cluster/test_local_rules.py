"""Local rules on real processes: a killed worker, a loop that does not know them."""

import numpy as np
import pytest

import psworker
from tests.cluster.cluster import Cluster, entries_of
from tests.links import connect_link

pytestmark = pytest.mark.cluster

OUTER = ("--optimizer", "sgd", "--learning-rate", "1")
STEPS = ("--set", "policy.steps=4", "--set", "policy.learning_rate=0.1")
POLICIES = {
    "local-sgd": (*STEPS, *OUTER),
    "easgd": (*STEPS, *OUTER),
}


def test_a_worker_that_is_killed_in_the_middle_of_a_ticket_goes_on_behind_the_last_one(
    cluster: Cluster,
) -> None:
    cluster.start_servers(1, "--policy", "local-sgd", *POLICIES["local-sgd"], "--workers", "2")
    cluster.start_worker("--task-index", "0", "--batches", "24")
    victim = cluster.start_worker("--task-index", "1", "--batches", "24", "--hold", "computing@8")
    victim.wait_event("held")
    victim.kill()
    second = cluster.start_worker("--task-index", "1", "--batches", "24")
    assert second.wait_event("joined")["next_batch"] == 8
    run = cluster.wait_end()
    batches = [entry["batch"] for entry in entries_of(run, "commit") if entry["worker"] == "w1"]
    assert batches == [3, 7, 11, 15, 19, 23]


def test_a_loop_that_pushes_plain_gradients_is_told_so(cluster: Cluster) -> None:
    hosts = cluster.start_servers(1, "--policy", "easgd", "--workers", "1")
    with pytest.raises(psworker.Refused, match="asks its workers for the local rule 'elastic'"):
        connect_link(hosts, {"w": np.zeros((1, 10), np.float32), "b": np.ones(3, np.float32)})
    # Nothing is left of it, and a worker that knows better does the job.
    cluster.start_worker("--batches", "8", "--elements", "10")
    assert cluster.wait_end(worker_codes=[0]).summary.success
