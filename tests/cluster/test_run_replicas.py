"""`ps-lab run --replicas 2` starts dead servers again, so that one loss after the other costs nothing."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pslab.check.checker import check_run
from pslab.launch.status_client import StatusClient, StatusError
from pslab.runs.folder import Run
from pswire.v1 import coordinator_pb2 as pb
from tests.cluster.cluster import PATIENCE, ROOT, entries_of, wait_until
from tests.cluster.launched import servers

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

BATCHES = 40
GATES = 10, 20, 30
EXPERIMENT = f"""
[cluster]
workers = 2
worker_timeout = 60.0
[policy]
name = "sync"
[optimizer]
name = "adam"
learning_rate = 0.05
[job]
script = "tests/cluster/numpy_worker.py"
arguments = ["--batches", "{BATCHES}", GATES]
"""


def run(folder: Path, *options: str, tables: int = 0) -> "subprocess.Popen[str]":
    """The workers stand still before each of GATES until there is a file of that number. `tables`: the model has sparse
    tables, and rows have so many numbers."""
    file = folder / "experiment.toml"
    given = ", ".join(f'"--gate", "{step}", "{folder / str(step)}"' for step in GATES)
    text = EXPERIMENT
    if tables:
        text, given = text.replace("numpy_worker", "tables_worker"), f'{given}, "--dim", "{tables}"'
    file.write_text(text.replace("GATES", given))
    return subprocess.Popen(
        [sys.executable, "-m", "pslab", "run", str(file), "--out", str(folder / "run"), *options],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def status(out: Path) -> pb.StatusReply | None:
    """What the server says that leads, if one does."""
    try:
        client = StatusClient((out / "address").read_text().strip())
    except OSError:
        return None
    try:
        return client.ask()
    except StatusError:
        return None
    finally:
        client.close()


def whole(out: Path, version: int) -> bool:
    """Whether the job is at that version or beyond, with both copies in sync and the third server there."""
    found = status(out)
    states = {"leads", "in sync", "votes"}
    return found is not None and found.version >= version and {s.state for s in found.servers} == states


def sha256(folder: Path) -> str:
    found = Run(folder / "run")
    verdict = check_run(found)
    assert verdict.ok, [str(violation) for violation in verdict.violations]
    commits = [(entry["worker"], entry["batch"]) for entry in entries_of(found, "commit") if entry["samples"]]
    assert sorted(commits) == [(f"w{rank}", batch) for rank in range(2) for batch in range(BATCHES)]
    assert found.summary.success and found.summary.weights_sha256
    return found.summary.weights_sha256


def test_two_servers_are_killed_one_after_the_other_and_the_weights_are_those_of_a_run_without(
    tmp_path: Path,
) -> None:
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    for folder in (alone, killed):
        folder.mkdir()
    for gate in GATES:
        (alone / str(gate)).touch()
    with run(alone, "--quiet") as launcher:
        said, _ = launcher.communicate(timeout=4 * PATIENCE)
        assert launcher.returncode == 0, said
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
    assert sha256(killed) == sha256(alone)
    assert len(list(out.glob("decisions.before-epoch-*.jsonl"))) == 2
