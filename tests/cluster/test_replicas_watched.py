"""Whoever watches or steers a job with replicas goes on when another server comes to lead."""

from collections.abc import Iterator
from pathlib import Path
from signal import SIGKILL, SIGSTOP

import pytest

from pslab.launch.status_client import StatusClient
from tests.cluster.cluster import Cluster, entries_of
from tests.cluster.replicated import GATE, committed_once, end, start, wait_for_the_gate
from tests.repetitions import usually
from tests.replay.command import ps_lab

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A job at its gate."""
    monkeypatch.setenv("PS_REPLICAS", "2")
    with Cluster(tmp_path) as started:
        start(started, "async")
        wait_for_the_gate(started, 2 * GATE)
        yield started


def lose(cluster: Cluster, how: int) -> None:
    """Lose server 0, which leads. One that stands still is killed at the end of the test."""
    cluster.servers[0].send(how)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", usually([SIGSTOP], soak=[SIGKILL]))
def test_a_client_finds_the_server_that_leads(cluster: Cluster, how: int) -> None:
    voter, follower, all_of_them = (
        StatusClient(each) for each in (cluster.addresses[2], cluster.addresses[1], cluster.hosts)
    )
    clients = voter, follower, all_of_them
    for client in clients:
        assert client.ask().version == 2 * GATE
        assert client.address == cluster.addresses[0]
    lose(cluster, how)
    for client in clients:
        reply = client.ask()
        assert reply.version == 2 * GATE and client.address == cluster.addresses[1]
        assert reply.servers[1].state == "leads"
        assert "one copy is left: its loss would end the job" in reply.note
    for number, client in enumerate(clients):
        client.note(f"note {number}")
        client.close()
    end(cluster, 0)
    committed_once(cluster)
    notes = [note["text"] for note in entries_of(cluster.checked_run(), "note")]
    assert notes[-3:] == ["note 0", "note 1", "note 2"]


def test_commands_take_the_folder_of_the_run_or_any_of_its_servers(cluster: Cluster) -> None:
    lose(cluster, SIGKILL)
    # The folder may still name the server that is lost.
    for target in (cluster.out, cluster.hosts, cluster.addresses[2]):
        said = ps_lab("status", target, "--json")
        assert said.code == 0, said.err
        assert [server["state"] for server in said.lines[0]["servers"]] == ["lost", "leads", "votes"]
    assert ps_lab("note", cluster.out, "it goes on").code == 0
    assert "its loss would end the job" in ps_lab("status", cluster.out).out
    end(cluster, 0)
    assert "it goes on" in [note["text"] for note in entries_of(cluster.checked_run(), "note")]
