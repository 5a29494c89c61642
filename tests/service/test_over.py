"""A worker that a controller starts again when its job has succeeded: it ends at once, and well."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import psworker
from pslab.experiment import Experiment
from pswire.exits import ExitCode
from psworker import running
from psworker.connection import Connection
from psworker.running import Reporter, WorkerOptions
from tests.promises import promise
from tests.sentences import Recorder
from tests.service.peer import Peer
from tests.service.serving import PATIENCE, VARIABLES, Cluster, serving
from tests.service.test_ends import finished

ROOT = Path(__file__).parents[2]
INITIAL = [(spec, np.zeros(spec.shape, np.float32)) for spec in VARIABLES]


@pytest.fixture
def over() -> Iterator[Cluster]:
    """A job that has succeeded, and whose servers wait for a member to leave."""
    with serving() as cluster, Peer(cluster, "w0") as peer:
        peer.step()
        finished(cluster, peer)
        yield cluster


@pytest.fixture(autouse=True)
def trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(
        specs=INITIAL, work=None, optimizer=None, backend="tensorflow", device="cpu:0", function=""
    )
    monkeypatch.setattr(running, "_trainer", lambda *_: found)


def ps_worker(hosts: str, task_index: int) -> ExitCode:
    options = WorkerOptions(server_timeout=PATIENCE)
    connection = Connection.resolve(hosts, task_index=task_index, server_timeout=PATIENCE)
    return running.run(Experiment(), connection, options, Reporter(as_json=False))


def test_a_loop_of_ones_own_is_told_so(over: Cluster, sentences: Recorder) -> None:
    with sentences.raises(psworker.JobOver):
        psworker.connect(over.hosts, INITIAL, task_index=0)


def test_of_a_job_that_did_not_succeed_it_is_told_that_a_restart_may_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 3, as of those who were there when it ended: not 5, after which nobody starts a worker again."""
    words = "the job is over: stopped by SIGTERM"
    with serving(workers=2) as cluster:
        with Peer(cluster, "w0") as peer:
            cluster.servers[0].interrupt()
            peer.receive("stop")
            with pytest.raises(psworker.JobStopped, match=words):
                psworker.connect(cluster.hosts, INITIAL, task_index=1)
            with pytest.raises(SystemExit) as ended:
                ps_worker(cluster.hosts, 1)
        assert cluster.servers[0].ended() == ExitCode.TERMINATED
    assert ended.value.code == ExitCode.UNREACHABLE and words in capsys.readouterr().err


@promise("A worker that comes after its job has succeeded exits with 0.")
def test_ps_worker_exits_0(over: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert ps_worker(over.hosts, 0) == ExitCode.OK
    assert capsys.readouterr().out == "nothing is left to do: server 0 at " + over.hosts + (
        ": the job is over: all workers are done\n"
    )


def test_a_script_of_ones_own_exits_0(over: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, numpy, psworker\n"
        f"start = {{name: numpy.zeros(shape, 'float32') for name, shape in {[(s.name, s.shape) for s in VARIABLES]}}}\n"
        "psworker.connect(os.environ['PS_HOSTS'], start, state=['mean'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "psworker.script", str(os.getpid()), str(script)],
        env={**os.environ, "PS_HOSTS": over.hosts},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE,
        check=False,
    )
    assert done.returncode == ExitCode.OK, done.stderr
    assert "nothing is left to do" in done.stdout
