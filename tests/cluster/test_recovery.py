"""`kill -9` of a server while the others stay up: the job goes back to its newest checkpoint, and on from there."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from pslab.check.checker import check_run
from pslab.runs.folder import Run
from psworker.control.joining import Phase
from psworker.errors import Voided
from psworker.link import Link
from tests.cluster.cluster import Cluster, Process, entries_of, wait_until
from tests.cluster.saved import saved
from tests.promises import promise
from tests.service.test_next_job import joined

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

BATCHES = 40
SYNC = ("--workers", "2", "--policy", "sync", "--optimizer", "adam", "--learning-rate", "0.05")


SECRET = {"PS_JOB_SECRET": "known to the servers"}


def start_servers(cluster: Cluster, servers: int, flags: tuple[str, ...] = SYNC) -> None:
    """Which share the run folder. `flags`: of server 0."""
    every = ("--out", str(cluster.out), "--resume", "auto", "--checkpoint-every", "5 versions")
    cluster.start_servers(servers, *flags, every=every, **SECRET)


def start(cluster: Cluster, servers: int, batches: int = BATCHES, *workers: str) -> None:
    """And two workers."""
    start_servers(cluster, servers)
    for index in range(2):
        cluster.start_worker("--batches", str(batches), "--task-index", str(index), *workers)


def gate(cluster: Cluster, name: str = "gate") -> Path:
    return cluster.folder / name


def until_killed(cluster: Cluster, name: str = "gate", step: int = 12) -> tuple[str, ...]:
    """Both workers wait before that step, behind two checkpoints at least, until a server is killed (`kill`)."""
    return ("--gate", str(step), str(gate(cluster, name)))


def kill(cluster: Cluster, index: int, name: str = "gate") -> None:
    cluster.servers[index].kill()
    gate(cluster, name).touch()


def again(cluster: Cluster, index: int, first: tuple[str, ...] = SYNC) -> Process:
    """The server of that index, with the same command. `first`: flags of server 0."""
    cluster.servers[index].close()
    hosts = ("--ps-hosts", ",".join(cluster.addresses), "--task-index", str(index))
    every = ("--out", str(cluster.out), "--resume", "auto", "--checkpoint-every", "5 versions")
    flags = (*hosts, "--json", "--worker-timeout", "10", *every, *(first if index == 0 else ()))
    cluster.servers[index] = cluster.launch(f"server-{index}-again", "-m", "psserver", *flags, **SECRET)
    return cluster.servers[index]


def check_counted_once(run: Run, batches: int = BATCHES) -> None:
    commits = Counter((entry["worker"], entry["batch"]) for entry in entries_of(run, "commit"))
    assert set(commits.values()) == {1} and len(commits) == 2 * batches


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str | None:
    """The digest of the weights of a run in which nobody dies."""
    with Cluster(tmp_path_factory.mktemp("undisturbed")) as cluster:
        start(cluster, 2)
        return cluster.wait_end(worker_codes=[0, 0]).summary.weights_sha256


@promise("Under sync a run that lost a server ends with the bits of an undisturbed run.")
@pytest.mark.parametrize("killed", [1, 0], ids=["shard", "coordinator"])
def test_a_run_that_lost_a_server_ends_with_the_bits_of_one_that_did_not(
    cluster: Cluster, undisturbed: str | None, killed: int
) -> None:
    start(cluster, 2, BATCHES, *until_killed(cluster))
    cluster.wait_for(lambda _: len(saved(cluster)) >= 2, "two checkpoints are complete")
    kill(cluster, killed)
    again(cluster, killed)
    run = cluster.wait_end(worker_codes=[0, 0])
    assert run.summary.weights_sha256 == undisturbed is not None
    check_counted_once(run)
    (restore,) = entries_of(run, "restore")
    assert restore["job"].endswith(".1")
    void = next(cluster.out.glob("decisions.void-*.jsonl")).read_text().splitlines()
    assert len([json.loads(line) for line in void]) == restore["rolled_back"]


@pytest.mark.nightly
def test_what_codecs_remember_is_forgotten_with_the_commits_that_are_undone(cluster: Cluster) -> None:
    """By the workers, which live on, and by the servers, which would refuse a commit with another residual."""
    sgd = ("--workers", "2", "--policy", "sync", "--optimizer", "sgd", "--learning-rate", "0.05")
    start_servers(cluster, 2, sgd)
    for index in range(2):
        flags = ("--batches", str(BATCHES), "--task-index", str(index), "--wire-dtype", "top-k/int4")
        cluster.start_worker(*flags, *until_killed(cluster))
    cluster.wait_for(lambda _: len(saved(cluster)) >= 2, "two checkpoints are complete")
    kill(cluster, 0)
    again(cluster, 0, first=sgd)
    run = cluster.wait_end(worker_codes=[0, 0])
    check_counted_once(run)
    (restore,) = entries_of(run, "restore")
    returned = [entry for entry in entries_of(run, "join") if entry["i"] > restore["i"]]
    assert [entry["forgets"] for entry in returned] == [["codec"]] * 2
    for worker in {entry["worker"] for entry in returned}:
        later = [e for e in entries_of(run, "commit") if e["worker"] == worker and e["i"] > restore["i"]]
        assert [e.get("residual") for e in later] == [None, *(e["ticket"] for e in later[:-1])]
    assert check_run(run).ok


def test_a_server_that_does_not_come_back_ends_the_job(cluster: Cluster) -> None:
    every = ("--out", str(cluster.out), "--checkpoint-every", "5 versions", "--recover-timeout", "1")
    cluster.start_servers(2, *SYNC, every=every)
    for index in range(2):
        # One that does not meet server 0 between the loss and the end looks for it for so long.
        patience = ("--server-timeout", "5")
        cluster.start_worker("--task-index", str(index), "--seconds", "0.01", *patience)
    cluster.wait_for(lambda _: len(saved(cluster)) >= 1, "a checkpoint is complete")
    cluster.servers[1].kill()
    assert cluster.servers[0].wait_exit() == 3
    reason = cluster.servers[0].events("stopped")[-1]["reason"]
    assert reason.startswith("server 1 at 127.0.0.1:") and "did not come back within" in reason
    assert [worker.wait_exit() for worker in cluster.workers] == [3, 3]
    assert len(entries_of(cluster.checked_run(), "restore")) == 1


@pytest.mark.nightly
def test_a_server_that_is_lost_in_a_later_job_of_a_script_comes_back_to_that_one(cluster: Cluster) -> None:
    """In the folder of that job; the job that ended before stays as it is."""
    alone = ("--workers", "1", "--policy", "async")
    start_servers(cluster, 2, alone)
    model, later = {"x": np.zeros(6, np.float32)}, cluster.out / "job-2"

    def step(session: Link) -> None:
        while True:
            grant = session.ready()
            assert grant is not None
            try:
                session.push(grant, {"x": np.ones(6, np.float32)})
                session.commit(grant, samples=1)
                return
            except Voided as reason:
                # The servers may begin again at any moment of a step.
                session.abandon(grant, str(reason))

    def connect(phase: Phase) -> Link:
        return joined(cluster.hosts, model, name="w0", phase=phase)

    first = connect(Phase(stays=True))
    for _ in range(5):
        step(first)
    assert first.done().success
    second = connect(Phase(stays=True, job=first.info.job, begins_next=True))
    first.close()
    ended = (cluster.out / "decisions.jsonl").read_bytes()
    for _ in range(5):
        step(second)
    wait_until(lambda: bool(saved(cluster, "job-2")), "a checkpoint of the later job")
    cluster.servers[0].kill()
    again(cluster, 0, first=alone)
    for _ in range(3):
        step(second)
    assert second.done().success
    second.close()
    assert [server.wait_exit() for server in cluster.servers] == [0, 0]
    assert (cluster.out / "decisions.jsonl").read_bytes() == ended
    assert [entry["job"] for entry in entries_of(Run(later), "restore")] == [
        f"{second.info.job.split('.')[0]}.1"
    ]
    assert check_run(Run(later)).ok
