"""`ps-lab run --resume`: a run that was cut off goes on in the same folder, by the command that began it."""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from pslab.check.checker import check_run
from pslab.runs.folder import Run
from psserver.checkpoint import Store
from tests.cluster.cluster import PATIENCE, ROOT, entries_of, wait_until
from tests.cluster.launched import servers

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

BATCHES = 60
EXPERIMENT = f"""
[run]
checkpoint_every = "5 versions"
[cluster]
servers = 2
workers = 2
worker_timeout = 10.0
[policy]
name = "sync"
[optimizer]
name = "adam"
learning_rate = 0.05
[job]
script = "tests/cluster/numpy_worker.py"
arguments = ["--batches", "{BATCHES}", "--gate", "12", "GATE"]
"""


def command(folder: Path, *options: str) -> list[str]:
    file = folder / "experiment.toml"
    # Behind two checkpoints the workers wait for a file: the run does not end before it is killed.
    file.write_text(EXPERIMENT.replace("GATE", str(folder / "gate")))
    return [
        sys.executable,
        "-m",
        "pslab",
        "run",
        str(file),
        "--out",
        str(folder / "run"),
        "--quiet",
        "--restarts",
        "0",
        *options,
    ]


def lab(command: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=4 * PATIENCE
    )


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def complete(run: Path) -> int:
    return len(list((run / "checkpoints").glob("*/manifest.json")))


def files(run: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (*run.glob("*.jsonl"), run / "experiment.toml")}


def test_a_run_goes_on_by_the_command_that_began_it(tmp_path: Path) -> None:
    """Also on another number of servers: every batch is committed once. As another job it is refused, and unchanged."""
    out = tmp_path / "run"
    with subprocess.Popen(
        command(tmp_path),
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as launcher:
        wait_until(lambda: complete(out) >= 2, "two checkpoints are complete")
        servers(launcher.pid, out / "decisions.jsonl")[0].send_signal(signal.SIGKILL)
        (tmp_path / "gate").touch()
        said, _ = launcher.communicate(timeout=2 * PATIENCE)
    assert launcher.returncode == 3, said
    assert "server-0 was killed by SIGKILL" in said
    assert "resume with ps-lab run" in said and "--resume latest" in said
    before = files(out)
    other = lab(command(tmp_path, "--resume", "latest", "--policy", "async"))
    assert other.returncode == 2 and "a job goes on as it began" in other.stdout
    assert files(out) == before
    again = lab(command(tmp_path, "--resume", "latest", "--set", "cluster.servers=1"))
    assert again.returncode == 0, again.stderr
    run = Run(out)
    assert check_run(run).violations == ()
    commits = Counter((entry["worker"], entry["batch"]) for entry in entries_of(run, "commit"))
    assert set(commits.values()) == {1} and len(commits) == 2 * BATCHES
    (restored,) = entries_of(run, "restore")
    assert restored["servers"] == run.experiment.cluster.servers == 1
    store = Store(out / "checkpoints")
    assert store.verify(store.names()[-1]).version == run.summary.versions


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One that nothing happened to, with all of its checkpoints."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "gate").touch()
    done = lab(command(folder, "--set", "run.keep=99"))
    assert done.returncode == 0, done.stderr
    return Run(folder / "run")


def test_a_run_that_has_succeeded_has_nothing_left_to_do(whole: Run) -> None:
    before = files(whole.path)
    again = lab(command(whole.path.parent, "--resume", "auto"))
    assert again.returncode == 0 and "nothing was left to do" in again.stdout, again.stderr
    assert files(whole.path) == before


def check_same_end(out: Path, whole: Run) -> Run:
    run = Run(out)
    assert check_run(run).violations == ()
    assert run.summary.weights_sha256 == whole.summary.weights_sha256 is not None
    assert run.summary.versions == whole.summary.versions
    commits = Counter((entry["worker"], entry["batch"]) for entry in entries_of(run, "commit"))
    assert set(commits.values()) == {1} and len(commits) == 2 * BATCHES
    return run


def test_ctrl_c_saves_the_last_version_and_a_resume_goes_on_from_it(tmp_path: Path, whole: Run) -> None:
    """On all servers, though every process is told to end at once. No other checkpoint is due."""
    out, rarely = tmp_path / "run", ("--set", "run.checkpoint_every=1000000 versions")

    def gated() -> bool:
        log = out / "decisions.jsonl"
        return log.is_file() and log.read_text().count('"kind":"apply"') == 12

    with subprocess.Popen(
        command(tmp_path, *rarely), cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True
    ) as launcher:
        wait_until(gated, "both workers wait behind version 12")
        launcher.send_signal(signal.SIGINT)
        said, _ = launcher.communicate(timeout=2 * PATIENCE)
    assert launcher.returncode == 130, said
    assert (
        "stopped by SIGINT" in said
        and f"version 12 is saved: resume with ps-lab run {out}/experiment.toml --out {out}" in said
    )
    store = Store(out / "checkpoints")
    assert [store.verify(name).version for name in store.names()] == [12]
    assert (out / "weights.safetensors").is_file()
    (tmp_path / "gate").touch()
    again = lab(command(tmp_path, *rarely, "--resume", "latest"))
    assert again.returncode == 0, again.stderr
    assert entries_of(check_same_end(out, whole), "restore")[0]["version"] == 12
