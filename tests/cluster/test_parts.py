"""A model in several parts, each on a pair of servers: any one of these dies, and nobody goes back."""

from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM

import pytest

from pslab.check.checker import check_run
from pslab.runs.folder import Run
from tests.cluster.cluster import PATIENCE, Cluster, wait_until
from tests.cluster.launched import servers
from tests.cluster.replicated import (
    GATE,
    LATER,
    MORE,
    SAVING,
    committed_once,
    end,
    open_gates,
    saved,
    sha256,
    start,
    start_again,
    undisturbed,
    wait_for_the_gate,
    wait_state,
)
from tests.cluster.replicated_run import GATES, run, run_alone, status
from tests.repetitions import usually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the weights that one server makes alone."""
    return undisturbed(tmp_path_factory.mktemp("alone") / "run", 1000, MORE)


@pytest.mark.parametrize(
    ("servers", "lost"),
    usually([(4, 2)], soak=[(4, 0), (4, 1), (4, 3), (5, 4), (5, 2), (6, 5)]),
    ids=lambda value: str(value),
)
def test_any_server_dies_and_comes_back_and_the_weights_are_those_of_a_run_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: str, servers: int, lost: int
) -> None:
    """The one that coordinates, the primary of part 1, the follower of each, and one that votes."""
    monkeypatch.setenv("PS_REPLICAS", "2")
    with Cluster(tmp_path) as cluster:
        start(cluster, "sync", servers=servers, batches=MORE)
        wait_for_the_gate(cluster, GATE)
        cluster.servers[lost].kill()
        leader = 1 if lost == 0 else 0
        wait_state(cluster, leader, lost, "lost")
        open_gates(cluster, "gate")
        wait_for_the_next_gate(cluster, leader)
        start_again(cluster, lost, "sync", "--ps-hosts", cluster.hosts)
        wait_state(cluster, leader, lost, "votes" if lost == 2 * (servers // 2) else "in sync")
        end(cluster)
        assert sha256(cluster) == expected
        committed_once(cluster, MORE)


def wait_for_the_next_gate(cluster: Cluster, leader: int) -> None:
    if leader == 0:
        wait_for_the_gate(cluster, LATER)


@pytest.mark.nightly
def test_both_copies_of_each_part_are_replaced_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: str
) -> None:
    """At the end nobody who began with a copy is left."""
    monkeypatch.setenv("PS_REPLICAS", "2")
    with Cluster(tmp_path) as cluster:
        start(cluster, "sync", servers=4, batches=MORE)
        wait_for_the_gate(cluster, GATE)
        for lost, leader in ((2, 0), (3, 0), (0, 1), (1, 0)):
            cluster.servers[lost].kill()
            wait_state(cluster, leader, lost, "lost")
            start_again(cluster, lost, "sync")
            wait_state(cluster, leader, lost, "in sync")
            if lost == 3:
                open_gates(cluster, "gate")
                wait_for_the_gate(cluster, LATER)
        end(cluster)
        assert sha256(cluster) == expected
        committed_once(cluster, MORE)


@pytest.mark.nightly
@pytest.mark.parametrize("tables", usually([True], soak=[False]))
def test_a_server_of_a_part_that_stood_still_begins_again_with_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tables: bool
) -> None:
    """Its partner serves the part. Its process goes on, unlike a coordinator's, which could write to the log."""
    alone = undisturbed(tmp_path / "alone", 1000, MORE, tables=tables)
    monkeypatch.setenv("PS_REPLICAS", "2")
    (tmp_path / "stopped").mkdir()
    with Cluster(tmp_path / "stopped") as cluster:
        start(cluster, "sync", servers=4, batches=MORE, tables=tables)
        wait_for_the_gate(cluster, GATE)
        cluster.servers[2].send(SIGSTOP)
        wait_state(cluster, 0, 3, "serves part 1")
        assert "one copy of part 1 is left" in cluster.status().note
        open_gates(cluster, "gate")
        wait_for_the_gate(cluster, LATER)
        cluster.servers[2].send(SIGCONT)
        wait_state(cluster, 0, 2, "in sync")
        # Whoever leads may be lost now, too, and then the one that serves the part.
        cluster.servers[0].kill()
        wait_state(cluster, 1, 0, "lost")
        end(cluster, lost=0)
        assert sha256(cluster) == alone
        committed_once(cluster, MORE)


@pytest.mark.nightly
@pytest.mark.parametrize("lost", usually([2], soak=[0]))
def test_checkpoints_of_all_parts_are_written_whoever_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    monkeypatch.setenv("PS_REPLICAS", "2")
    with Cluster(tmp_path) as cluster:
        start(cluster, "sync", servers=4, batches=MORE, more=(*SAVING, "--keep", "50"))
        wait_for_the_gate(cluster, GATE)
        wait_until(lambda: saved(cluster.out) == [3, 6], "the first checkpoints")
        cluster.servers[lost].kill()
        wait_state(cluster, 1 if lost == 0 else 0, lost, "lost")
        end(cluster, lost=lost)
        assert saved(cluster.out)[:2] == [3, 6] and saved(cluster.out)[-1] == MORE
        for folder in cluster.out.glob("checkpoints/*/"):
            assert {"server-0.json", "server-1.json"} <= {file.name for file in folder.iterdir()}


@pytest.mark.nightly
@pytest.mark.parametrize(("before", "after"), usually([(5, 3)], soak=[(4, 4), (3, 6), (4, 1), (1, 4)]))
def test_a_run_is_resumed_on_other_numbers_of_servers(tmp_path: Path, before: int, after: int) -> None:
    """All copies are lost, so it goes back to the checkpoint."""
    expected, killed = run_alone(tmp_path / "alone"), tmp_path / "killed"
    killed.mkdir()
    out = killed / "run"
    with run(killed, *copies(before), "--restarts", "0") as launcher:
        try:
            wait_until(lambda: at_gate(out, GATES[0]), "the first gate")
            wait_until(lambda: 9 in saved(out), "a checkpoint of version 9")
            for each in servers(launcher.pid, out / "decisions.jsonl"):
                each.send_signal(SIGKILL)
            said, _ = launcher.communicate(timeout=4 * PATIENCE)
        finally:
            launcher.kill()
        assert launcher.returncode == 3, said
    with run(killed, *copies(after), "--resume", "latest") as launcher:
        try:
            for gate in GATES:
                (killed / str(gate)).touch()
            said, _ = launcher.communicate(timeout=4 * PATIENCE)
        finally:
            launcher.kill()
    assert launcher.returncode == 0, said
    found = Run(out)
    verdict = check_run(found)
    assert verdict.ok, [str(violation) for violation in verdict.violations]
    assert found.summary.weights_sha256 == expected


def copies(number: int) -> tuple[str, ...]:
    replicas = ("--replicas", "2") if number > 1 else ()
    return ("--quiet", *replicas, f"--set=cluster.servers={number}", "--set=run.checkpoint_every=3 versions")


def at_gate(out: Path, version: int) -> bool:
    found = status(out)
    return found is not None and found.version == version


@pytest.mark.nightly
def test_a_signal_to_all_servers_leaves_a_checkpoint_of_all_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PS_REPLICAS", "2")
    with Cluster(tmp_path) as cluster:
        start(cluster, "sync", servers=4, batches=MORE, more=SAVING)
        wait_for_the_gate(cluster, GATE)
        for server in reversed(cluster.servers):
            server.send(SIGTERM)
        assert [server.wait_exit() for server in cluster.servers] == [143] * 4
        assert saved(cluster.out)[-1] == GATE
