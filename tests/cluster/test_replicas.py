"""A job with replicas goes on without going back, whichever server dies or stands still."""

import json
from pathlib import Path
from signal import SIGCONT, SIGSTOP

import pytest

from pslab.launch.status_client import StatusClient, StatusError
from tests.cluster.cluster import Cluster, Process, entries_of, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

BATCHES, GATE = 16, 8


def start(cluster: Cluster, policy: str, *knobs: str, replicas: int = 2) -> None:
    """Two workers, which stand still before their step number `GATE` until there is the file `gate`."""
    options = ("--workers", "2", "--policy", policy, "--optimizer", "adam", "--out", str(cluster.out))
    options += tuple(f"--set=policy.{knob}" for knob in knobs)
    cluster.start_servers(
        3 if replicas == 2 else 1, timeout=60.0, every=(*options, "--replicas", str(replicas))
    )
    gate = str(cluster.folder / "gate")
    for rank in range(2):
        cluster.start_worker(
            *("--task-index", str(rank), "--batches", str(BATCHES), "--gate", str(GATE), gate)
        )


def started_again(cluster: Cluster) -> Process:
    """Server 0, once the other one that leads counts on its vote."""
    options = ("--workers", "2", "--policy", "sync", "--optimizer", "adam", "--out", str(cluster.out))
    where = ("--ps-hosts", cluster.hosts, "--task-index", "0", "--worker-timeout", "60.0")
    command = ("-m", "psserver", *where, *options, "--replicas", "2", "--json")
    server = cluster.launch("server-0-again", *command)
    client = StatusClient(cluster.addresses[1])

    def votes() -> bool:
        try:
            return client.ask().servers[0].state == "votes"
        except StatusError:
            return False

    wait_until(votes, "the vote of server 0")
    client.close()
    return server


def wait_for_the_gate(cluster: Cluster, versions: int) -> None:
    cluster.wait_for(
        lambda status: status.version == versions and all(w.state == "computing" for w in status.workers),
        "both workers at the gate",
    )


def sha256(cluster: Cluster) -> str:
    found = json.loads((cluster.out / "summary.json").read_text())
    assert found["success"] and found["versions"] == len(entries_of(cluster.checked_run(), "apply"))
    return str(found["weights_sha256"])


def end(cluster: Cluster, lost: int) -> None:
    (cluster.folder / "gate").touch()
    assert [worker.wait_exit() for worker in cluster.workers] == [0, 0], cluster.workers[0].errors
    left = [server for number, server in enumerate(cluster.servers) if number != lost]
    assert [server.wait_exit() for server in left] == [0, 0], [server.errors for server in left]


def committed_once(cluster: Cluster) -> None:
    """Each batch of each worker counts once, and was worked on once."""
    run = cluster.checked_run()
    commits = [(entry["worker"], entry["batch"]) for entry in entries_of(run, "commit") if entry["samples"]]
    assert sorted(commits) == [(f"w{rank}", batch) for rank in range(2) for batch in range(BATCHES)]
    assert not entries_of(run, "restore")
    for worker in cluster.workers:
        assert worker.wait_event("finished")["steps"] == BATCHES


def test_the_primary_is_killed_and_the_weights_are_those_of_a_run_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "alone").mkdir()
    with Cluster(tmp_path / "alone") as cluster:
        (cluster.folder / "gate").touch()
        start(cluster, "sync", replicas=1)
        cluster.wait_end()
        expected = sha256(cluster)
    monkeypatch.setenv("PS_REPLICAS", "2")
    (tmp_path / "killed").mkdir()
    with Cluster(tmp_path / "killed") as cluster:
        start(cluster, "sync")
        wait_for_the_gate(cluster, GATE)
        cluster.servers[0].kill()
        again = started_again(cluster)
        try:
            end(cluster, 0)
            assert again.wait_exit() == 0, again.errors
        finally:
            again.close()
        assert sha256(cluster) == expected
        committed_once(cluster)
        assert list(cluster.out.glob("decisions.before-epoch-*.jsonl"))


def test_the_other_copy_is_killed_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PS_REPLICAS", "2")
    with Cluster(tmp_path) as cluster:
        start(cluster, "async")
        wait_for_the_gate(cluster, 2 * GATE)
        states = [server.state for server in cluster.status().servers]
        assert states == ["leads", "in sync", "votes"]
        cluster.servers[1].kill()
        cluster.wait_for(lambda status: "one copy is left" in status.note, "the loss in the status")
        end(cluster, 1)
        committed_once(cluster)


def test_a_primary_that_stood_still_writes_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PS_REPLICAS", "2")
    with Cluster(tmp_path) as cluster:
        start(cluster, "async")
        wait_for_the_gate(cluster, 2 * GATE)
        cluster.servers[0].send(SIGSTOP)
        leader = cluster.out / "address"
        wait_until(lambda: leader.read_text().startswith(cluster.addresses[1]), "another server that leads")
        cluster.servers[0].send(SIGCONT)
        assert cluster.servers[0].wait_exit() == 5
        assert cluster.servers[0].wait_event("stopped")["reason"]
        end(cluster, 0)
        committed_once(cluster)


def test_timers_go_on_with_the_server_that_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All gradients wait in the buffer for a timer that the server which is killed had set."""
    monkeypatch.setenv("PS_REPLICAS", "2")
    with Cluster(tmp_path) as cluster:
        start(cluster, "fedbuff-timeout", "aggregate=1000", "timeout=4.0")
        cluster.wait_for(
            lambda status: (
                sum(w.committed for w in status.workers) == 2 * GATE
                and all(w.state == "computing" for w in status.workers)
            ),
            "both workers at the gate",
        )
        cluster.servers[0].kill()
        leader = cluster.out / "address"
        wait_until(lambda: leader.read_text().strip() == cluster.addresses[1], "another server that leads")
        client = StatusClient(cluster.addresses[1])

        def updated() -> bool:
            try:
                return client.ask().version >= 1
            except StatusError:
                return False

        wait_until(updated, "the update that the timer makes")
        client.close()
        end(cluster, 0)
        committed_once(cluster)
        assert entries_of(cluster.checked_run(), "timer")
