"""A job that fails while its servers live saves first what they hold, and says how to go on from there."""

from pathlib import Path

import pytest

from pslab.verify.harness import CoordinatorHarness
from psserver.checkpoint import Store
from psserver.service.job.follower import Follower
from pswire.exits import ExitCode
from tests.asking import ask
from tests.checkpoint.test_signals import running
from tests.service.peer import Peer
from tests.service.serving import Cluster

REASON = "waited 101 s for an answer"


def fails(cluster: Cluster) -> None:
    """End the job as the server does for a reason of its own."""
    server = cluster.servers[0].server
    coordinating = server._coordinating
    assert coordinating is not None
    ask(server.runtime, lambda: coordinating.job.stop(REASON, success=False, cause="server"))


def test_a_job_that_fails_is_saved_and_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    out = tmp_path / "run"
    with running(out) as cluster:
        with Peer(cluster, "w0") as peer:
            for _ in range(3):
                peer.step()
            fails(cluster)
        assert {served.ended() for served in cluster.servers} == {ExitCode.UNREACHABLE}
    newest = Store(out / "checkpoints").newest()
    assert newest is not None and newest.version == 3
    assert "version 3 is saved: to go on from there, start all servers with the same options" in caplog.text
    with running(out, "latest") as cluster, Peer(cluster, "w0") as peer:
        peer.step()
        assert cluster.picture().version == 4


def test_nothing_is_waited_for_that_cannot_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server whose shard has failed saves nothing more."""
    monkeypatch.setattr(Follower, "failed", True)
    out = tmp_path / "run"
    with running(out) as cluster:
        with Peer(cluster, "w0") as peer:
            peer.step()
            fails(cluster)
        assert {served.ended() for served in cluster.servers} == {ExitCode.UNREACHABLE}
    assert Store(out / "checkpoints").newest() is None
    assert "NOT saved" not in caplog.text and "is saved: to go on" not in caplog.text


def test_a_job_without_workers_is_abandoned_in_time() -> None:
    """So that the server saves it in the moment before that."""
    harness = CoordinatorHarness("async", workers=1, terms={"idle_timeout": 60.0}).starts()
    harness.leaves("w0", "killed")
    assert not harness.coordinator.abandoned(harness.now + 59.0)
    assert harness.coordinator.abandoned(harness.now + 60.0)
