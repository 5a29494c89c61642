"""A model in several parts, each on a pair of servers: any one of these dies, and nobody goes back."""

from pathlib import Path
from signal import SIGCONT, SIGSTOP

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.replicated import (
    GATE,
    LATER,
    MORE,
    committed_once,
    end,
    open_gates,
    sha256,
    start,
    start_again,
    undisturbed,
    wait_for_the_gate,
    wait_state,
)
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
