"""A `Job` on Keras' backends: its steps beside TensorFlow's, a run and its replay, and one job of several backends."""

import contextlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.frameworks.test_backends import entries, environment, installed_backends, require
from tests.keras.processes import PATIENCE, ROOT, server
from tests.lab.logs import verify

pytestmark = [pytest.mark.tensorflow, pytest.mark.cluster, pytest.mark.timeout(900)]

JOBS = ROOT / "tests/frameworks/any_jobs.py"
DIGITS = ROOT / "examples/digits.py"


def ended(backend: str, *command: object) -> str:
    """What a Python program on this backend wrote; it ends with success."""
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=ROOT,
        env=environment(backend),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def on_tensorflow(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    path = tmp_path_factory.mktemp("jobs") / "tensorflow.npz"
    ended("tensorflow", JOBS, path)
    return dict(np.load(path))


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_steps_and_measures_are_those_of_tensorflow(
    backend: str, on_tensorflow: dict[str, np.ndarray], tmp_path: Path
) -> None:
    require(backend)
    said = ended(backend, JOBS, tmp_path / "found.npz")
    found = dict(np.load(tmp_path / "found.npz"))
    assert set(found) == {name for name in on_tensorflow if not name.startswith("Bare")}
    for name, values in found.items():
        np.testing.assert_allclose(values, on_tensorflow[name], rtol=1e-4, atol=1e-5, err_msg=name)
    assert f"which TensorFlow differentiates, and Keras computes with '{backend}' here: expected loss" in said


@pytest.mark.parametrize("backend", ["jax", pytest.param("torch", marks=pytest.mark.nightly)])
def test_a_run_of_the_lab_and_its_replay(backend: str, tmp_path: Path) -> None:
    require(backend)
    run = tmp_path / "run"
    small = {"run.versions": 8, "run.deterministic": "true", "cluster.servers": 1, "cluster.workers": 1}
    told = (
        *(word for key, value in small.items() for word in ("--set", f"{key}={value}")),
        "--quiet",
        "--out",
        run,
    )
    ended(backend, "-m", "pslab", "run", ROOT / "examples/digits-sync.toml", *told)
    log = entries(run)
    assert verify(log).ok
    assert {each["computes"] for each in log if each["kind"] == "join"} == {f"{backend} on cpu"}
    assert "bit for bit" in ended(backend, "-m", "pslab", "replay", run)


def test_one_job_with_a_worker_of_each_backend(tmp_path: Path) -> None:
    installed, run = installed_backends(), tmp_path / "run"
    count = str(len(installed))
    told = ("--workers", count, "--policy", "sync", "--versions", "12", "--out", str(run))
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(server(*told, "--optimizer", "adam"))
        workers = []
        for index, backend in enumerate(installed):
            command = ["--ps-hosts", address, "--task-index", str(index), "--job", f"{DIGITS}:Digits"]
            process = subprocess.Popen(
                [sys.executable, "-m", "psworker", *command],
                cwd=ROOT,
                env=environment(backend),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            workers.append(process)
        said = [process.communicate(timeout=PATIENCE)[0] for process in workers]
        assert [process.returncode for process in workers] == [0] * len(workers), said
    log = entries(run)
    assert verify(log).ok
    told_by = {each["worker"]: each["computes"] for each in log if each["kind"] == "join"}
    assert told_by == {f"w{index}": f"{backend} on cpu" for index, backend in enumerate(installed)}
    assert {each["worker"] for each in log if each["kind"] == "commit"} == set(told_by)
