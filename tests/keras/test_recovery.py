"""`kill -9` of both servers, one after the other, while `fit` goes on in the same two processes."""

import json
from typing import Any

import pytest

from pslab.runs.folder import Run
from tests.cluster.cluster import ROOT, Cluster, entries_of
from tests.cluster.test_recovered_ps_worker import wait_saved
from tests.cluster.test_recovery import again, gate, kill, start_servers
from tests.keras.two_workers import SAMPLES

pytestmark = [pytest.mark.nightly, pytest.mark.tensorflow, pytest.mark.cluster, pytest.mark.timeout(600)]

FROM_JOB = ("--workers", "2", "--policy", "sync", "--optimizer", "from-job", "--allow-missing")
EPOCHS = 4
# The versions at which servers are killed. They are an epoch later than the checkpoints before them, 5 and 10.
KILLS = {"first": 8, "second": 13}


def train(cluster: Cluster) -> tuple[Run, list[dict[str, Any]]]:
    """Kill server 1, then server 0, at the versions of `KILLS`; the run, and what both workers tell."""
    start_servers(cluster, 2, FROM_JOB)
    gates = [f"{version}={gate(cluster, name)}" for name, version in KILLS.items()]
    for index in range(2):
        script = ("tests/keras/recovering_script.py", str(index), str(cluster.folder), *gates)
        told = {"PS_HOSTS": cluster.hosts, "PYTHONPATH": str(ROOT)}
        cluster.workers.append(cluster.launch(f"worker-{index}", *script, **told))
    for killed, (name, version) in zip((1, 0), KILLS.items(), strict=True):
        wait_saved(cluster, version)
        # Each has the ticket of its next batch.
        here = [gate(cluster, f"{name} {index}") for index in range(2)]
        cluster.wait_for(
            lambda _, here=here: all(file.exists() for file in here), "both have begun the next batch"
        )  # type: ignore[misc]
        kill(cluster, killed, name)
        again(cluster, killed, first=FROM_JOB)
    run = cluster.wait_end(worker_codes=[0, 0])
    assert [entry["version"] for entry in entries_of(run, "restore")] == [5, 10]
    first, second = (json.loads((cluster.folder / f"{index}.json").read_text()) for index in range(2))
    assert first["weight"] == second["weight"]
    assert first["version"] == second["version"] == run.summary.versions
    # An epoch's end is one of both workers, also behind a rollback.
    assert len(first["history"]["loss"]) == len(second["history"]["loss"]) == EPOCHS
    assert first["history"]["loss"][: EPOCHS - 1] == second["history"]["loss"][: EPOCHS - 1]
    # Also where batches of the epoch, or of the one before it, were trained again.
    assert first["history"]["samples"] == [SAMPLES] * EPOCHS
    return run, [first, second]


def lost(cluster: Cluster) -> list[list[str]]:
    """What each worker says of batches that do not count."""
    return [
        [line.split(" ", 2)[2] for line in worker.errors.splitlines() if "are not trained again" in line]
        for worker in cluster.workers
    ]


def test_other_batches_do_not_count_and_the_worker_says_how_many(cluster: Cluster) -> None:
    run, told = train(cluster)
    said = [
        f"3 committed batches of this worker, from batch {start} on, and the batch in progress do not count and are "
        "not trained again"
        for start in (5, 14)
    ]
    assert lost(cluster) == [said, said]
    counted: dict[str, list[int]] = {"w0": [], "w1": []}
    for entry in entries_of(run, "commit"):
        counted[entry["worker"]].append(entry["batch"])
    assert counted == dict.fromkeys(counted, [*range(5), *range(9, 14), *range(18, 24)])
    assert run.summary.missing == {"batches": {"w0": 8, "w1": 8}}
    assert run.summary.reason.endswith("; 16 batches of w0, w1 were lost with a server or a connection")
    assert run.summary.success and told[0]["history"]["loss"] == told[1]["history"]["loss"]
