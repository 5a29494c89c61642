"""A server that stands still for good (SIGSTOP): it has a name in status, and the job ends for everybody."""

from pathlib import Path
from signal import SIGCONT, SIGSTOP

import pytest

from pslab.launch.status_client import StatusError
from pswire.patience import SERVER_AWAY
from tests.cluster.cluster import Cluster, wait_until
from tests.patience import PATIENCE
from tests.repetitions import SOAK

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]

TIMEOUT = 4.0
# Seconds: server 0 dials a stopped server for SERVER_AWAY, and workers hear of the end soon after.
LATEST = SERVER_AWAY + 2 * PATIENCE


def named(cluster: Cluster) -> bool:
    """Server 1 is, as one that is waited for."""
    try:
        return "waiting for server 1 to " in cluster.status().note
    except StatusError:
        return False


@pytest.mark.parametrize("transport", ["socket", "grpc"])
def test_a_server_that_is_stopped_for_good_ends_the_job(tmp_path: Path, transport: str) -> None:
    """Workers wait for it in the middle of a step, and are told."""
    with Cluster(tmp_path) as cluster:
        cluster.start_servers(2, "--workers", "2", "--policy", "sync", timeout=TIMEOUT)
        flags = ["--until", str(tmp_path / "never"), "--transport", transport]
        workers = [cluster.start_worker(*flags) for _ in range(2)]
        cluster.wait_for(lambda status: status.version >= 5, "training")
        first, stopped = cluster.servers
        stopped.send(SIGSTOP)
        # For the seconds until it is lost: on a busy machine nobody need ask just then.
        wait_until(lambda: named(cluster) or not first.running, "its name in status, or the end")
        assert first.running or not SOAK
        assert [process.wait_exit(LATEST) for process in (first, *workers)] == [3, 3, 3]
        # A ping without an answer breaks the connection, after 1.3 times the timeout.
        reason = first.wait_event("stopped")["reason"]
        assert reason.startswith("server 1 ") and "its connection broke" in reason, reason
        stopped.send(SIGCONT)
        assert stopped.wait_exit() == 3
