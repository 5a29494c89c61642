"""`ps-lab run --replicas 2` starts dead servers again, so that one loss after the other costs nothing."""

import signal
from pathlib import Path

import pytest

from tests.cluster.cluster import PATIENCE, wait_until
from tests.cluster.launched import servers
from tests.cluster.replicated_run import GATES, run, run_alone, sha256, whole

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def test_two_servers_are_killed_one_after_the_other_and_the_weights_are_those_of_a_run_without(
    tmp_path: Path,
) -> None:
    expected, killed = run_alone(tmp_path / "alone"), tmp_path / "killed"
    killed.mkdir()
    out = killed / "run"
    with run(killed, "--quiet", "--replicas", "2", "--set", "cluster.servers=3") as launcher:
        try:
            for gate in GATES:
                wait_until(lambda at=gate: whole(out, at), f"version {gate} with two copies")
                if gate != GATES[-1]:
                    # The one that leads has the log open.
                    servers(launcher.pid, out / "decisions.jsonl")[0].send_signal(signal.SIGKILL)
                (killed / str(gate)).touch()
            said, _ = launcher.communicate(timeout=4 * PATIENCE)
        finally:
            launcher.kill()
    assert launcher.returncode == 0, said
    for name in ("server-0", "server-1"):
        assert f"{name} was killed by SIGKILL; started again" in said, said
    assert "SIGTERM" not in said, said
    assert sha256(killed) == expected
    assert len(list(out.glob("decisions.before-epoch-*.jsonl"))) == 2
