"""Replicas on other numbers of servers than three: two, of which a person promotes one, and five."""

from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pslab.cli import cli
from pslab.launch.status_client import ChangeRefused, StatusClient, StatusError
from tests.cluster.cluster import Cluster
from tests.cluster.replicated import (
    GATE,
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

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def workers_know_of_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PS_REPLICAS", "2")


def promote(target: str | Path, *more: str, answer: str = "") -> Result:
    return CliRunner().invoke(cli, ["promote", str(target), *more], input=answer)


def test_a_person_promotes_the_server_that_is_left_and_later_the_other_one(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as without:
        without.delenv("PS_REPLICAS")
        expected = undisturbed(tmp_path / "alone", 1000, MORE)
    (tmp_path / "promoted").mkdir()
    with Cluster(tmp_path / "promoted") as cluster:
        start(cluster, "sync", servers=2, batches=MORE)
        wait_for_the_gate(cluster, GATE)
        assert "one more loss would stop the job" in cluster.status().note
        refused = promote(cluster.addresses[1], "--yes")
        assert refused.exit_code and "expected server 0 to be dead, got an answer" in refused.output, (
            refused.output
        )
        cluster.servers[0].kill()
        with (
            closing(StatusClient(cluster.hosts)) as client,
            pytest.raises(StatusError, match="ps-lab promote"),
        ):
            client.ask()
        assert promote(cluster.addresses[1], answer="n\n").exit_code == 1
        with (
            closing(StatusClient(cluster.addresses[1], job=lambda: "another")) as stranger,
            pytest.raises(ChangeRefused, match="expected a server of the job another, got one of"),
        ):
            stranger.promote()
        done = promote(cluster.out, answer="y\n")
        assert done.exit_code == 0 and f"{cluster.addresses[1]} goes on alone" in done.output, done.output
        open_gates(cluster, "gate")
        wait_state(cluster, 1, 0, "lost")
        assert "a person said that server 0 is dead" in cluster.servers[1].errors
        start_again(cluster, 0, "sync")
        wait_state(cluster, 1, 0, "in sync")
        # The same again with the other one, whose former primary now has everything.
        cluster.servers[1].kill()
        assert promote(cluster.addresses[0], "--yes").exit_code == 0
        wait_state(cluster, 0, 1, "lost")
        end(cluster, lost=1)
        assert sha256(cluster) == expected
        committed_once(cluster, MORE)
