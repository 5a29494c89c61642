"""Data as work units with real processes: each sample counts once per epoch, whoever comes, goes or dies."""

from collections import Counter
from pathlib import Path

import pytest

from pslab.runs.folder import Run
from psworker.work import WorkUnits
from tests.cluster.cluster import Cluster, entries_of
from tests.repetitions import usually

pytestmark = pytest.mark.cluster

SAMPLES, EPOCHS = 205, 2
# Five batches of ten; the last unit has five samples only.
UNIT = 50
WORK = WorkUnits(samples=SAMPLES, unit=UNIT, batch_size=10)
DATA = ("--samples", str(SAMPLES), "--unit", str(UNIT), "--epochs", str(EPOCHS))
POLICIES = {
    "sync": ("--policy", "sync"),
    "async": ("--policy", "async"),
    "backup": ("--policy", "sync", "--set", "policy.backup=1"),
}


def trained(run: Run) -> Counter[tuple[int, int]]:
    """How often each (epoch, sample) was applied, from the log alone."""
    seed = entries_of(run, "job")[0]["seed"]
    places = {g["ticket"]: (g["epoch"], g["unit"], g["part"]) for g in entries_of(run, "grant")}
    samples = {c["ticket"]: c["samples"] for c in entries_of(run, "commit")}
    found: Counter[tuple[int, int]] = Counter()
    for update in entries_of(run, "apply"):
        for applied in update["parts"]:
            epoch, unit, part = places[applied["ticket"]]
            indices = WORK.of(epoch, unit, seed).indices[10 * part : 10 * (part + 1)]
            # What the worker says that it averaged over is what it was dealt.
            assert samples[applied["ticket"]] == len(indices)
            found.update((epoch, int(index)) for index in indices)
    return found


def assert_once(run: Run) -> None:
    assert run.summary.reason == "all work units are done"
    wanted = Counter((epoch, index) for epoch in range(EPOCHS) for index in range(SAMPLES))
    assert trained(run) == wanted


@pytest.mark.parametrize(
    ("policy", "servers"),
    usually([("backup", 2)], soak=[(policy, servers) for policy in POLICIES for servers in (1, 2)]),
)
def test_each_sample_counts_once_per_epoch(cluster: Cluster, policy: str, servers: int) -> None:
    cluster.start_servers(servers, *POLICIES[policy], "--workers", "3")
    for index in range(3):
        cluster.start_worker("--task-index", str(index), *DATA)
    run = cluster.wait_end(worker_codes=[0, 0, 0])
    assert_once(run)


MOMENTS = ("pulling", "computing", "pushing", "pushed")


@pytest.mark.parametrize(
    ("moment", "policy"),
    usually([("pushing", "async")], soak=[(moment, p) for moment in MOMENTS for p in ("sync", "async")]),
)
def test_what_a_killed_worker_held_is_trained_by_others(
    cluster: Cluster, tmp_path: Path, policy: str, moment: str
) -> None:
    """kill -9 in the middle of a unit, between any two steps of a ticket."""
    cluster.start_servers(2, *POLICIES[policy], "--workers", "2")
    victim = cluster.start_worker("--task-index", "0", *DATA, "--hold", f"{moment}@2")
    # It does not take all units before the victim has its first: under a barrier both come to that step.
    cluster.start_worker("--task-index", "1", *DATA, "--gate", "3", str(tmp_path / "gate"))
    victim.wait_event("held")
    victim.kill()
    (tmp_path / "gate").touch()
    run = cluster.wait_end(worker_codes=[-9, 0])
    assert_once(run)
    # It left a part, and the rest of its unit.
    assert entries_of(run, "cancel")
