"""What a supervisor sees: ps-worker, a training script and ps-server end with 10."""

import os
from pathlib import Path

import pytest

from pswire.exits import ExitCode
from pswire.security.names import Role
from tests.cluster.cluster import Cluster
from tests.security.identities import ENDED, Identities

pytestmark = [pytest.mark.cluster, pytest.mark.tensorflow]

SCRIPT = """
import numpy as np, psworker
psworker.connect(variables={"w": np.ones(3, np.float32)}, server_timeout=30.0)
"""


def test_every_command_ends_with_10(cluster: Cluster, identities: Identities, tmp_path: Path) -> None:
    """A server of another cluster; a certificate that has ended."""
    foreign = identities.environment(Role.SERVER, "s0", authority=identities.foreign)
    server = cluster.launch("server", "-m", "psserver", "--ps-hosts", "127.0.0.1:0", "--json", **foreign)
    cluster.servers.append(server)
    hosts = server.wait_event("ready")["address"]
    own = identities.environment(Role.WORKER, "w0")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    job = ("--ps-hosts", hosts, "--job", "examples.linear:Linear")
    workers = [
        cluster.launch("worker", "-m", "psworker", *job, **own),
        cluster.launch(
            "script",
            "-m",
            "psworker.script",
            str(os.getpid()),
            str(script),
            PS_HOSTS=hosts,
            PS_TASK_INDEX="0",
            **own,
        ),
    ]
    cluster.workers += workers
    for worker in workers:
        assert worker.wait_exit() == ExitCode.UNTRUSTED, worker.errors
        assert "was not signed by the authority in --tls-ca" in worker.errors.splitlines()[-1]
    ended = identities.environment(Role.SERVER, "s0", valid=ENDED)
    late = cluster.launch("late", "-m", "psserver", "--ps-hosts", "127.0.0.1:0", **ended)
    cluster.servers.append(late)
    assert late.wait_exit() == ExitCode.UNTRUSTED
    [line] = late.errors.splitlines()
    assert line.startswith("ps-server: ") and "has expired" in line
