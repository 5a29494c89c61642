"""A job with replicas goes on without going back, whichever server dies or stands still."""

from pathlib import Path
from signal import SIGCONT, SIGSTOP

import pytest

from tests.cluster.cluster import Cluster, wait_until
from tests.cluster.replicated import (
    GATE,
    MORE,
    committed_once,
    end,
    killed_and_started_again,
    open_gates,
    sha256,
    start,
    undisturbed,
    wait_for_the_gate,
    wait_state,
)
from tests.promises import promise
from tests.repetitions import usually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("elements", "transport"), usually([(400_000, "socket")], soak=[(1000, "auto"), (400_000, "auto")])
)
def test_both_copies_are_killed_one_after_the_other_and_the_weights_are_those_of_a_run_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elements: int, transport: str
) -> None:
    """Large payloads go to the follower through memory, or else in pieces."""
    expected = undisturbed(tmp_path / "alone", elements, MORE)
    monkeypatch.setenv("PS_REPLICAS", "2")
    (tmp_path / "killed").mkdir()
    with Cluster(tmp_path / "killed") as cluster:
        through = ("--transport", transport)
        start(cluster, "sync", batches=MORE, elements=elements, more=through)
        wait_for_the_gate(cluster, GATE)
        killed_and_started_again(cluster, 0, "sync", *through)
        # It gets its copy while the others train.
        open_gates(cluster, "gate")
        wait_state(cluster, 1, 0, "in sync")
        killed_and_started_again(cluster, 1, "sync", *through)
        wait_state(cluster, 0, 1, "in sync")
        end(cluster)
        assert sha256(cluster) == expected
        committed_once(cluster, MORE)
        assert len(list(cluster.out.glob("decisions.before-epoch-*.jsonl"))) == 2


@promise("With two copies of each part, the loss of one server rolls nothing back.")
@pytest.mark.parametrize(
    ("more", "loss"),
    usually(
        [((), "end the job")], soak=[(("--checkpoint-every", "3 versions"), "go back to the checkpoint")]
    ),
)
def test_the_other_copy_is_killed_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...], loss: str
) -> None:
    monkeypatch.setenv("PS_REPLICAS", "2")
    with Cluster(tmp_path) as cluster:
        start(cluster, "async", more=more)
        wait_for_the_gate(cluster, 2 * GATE)
        if more:
            wait_until(lambda: list(cluster.out.glob("checkpoints/*/manifest.json")), "a checkpoint")
        states = [server.state for server in cluster.status().servers]
        assert states == ["leads", "in sync", "votes"]
        cluster.servers[1].kill()
        said = f"one copy is left: its loss would {loss}"
        cluster.wait_for(lambda status: said in status.note, "the loss in the status")
        end(cluster, lost=1)
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
        end(cluster, lost=0)
        committed_once(cluster)
