"""`psworker.keras.distribute` on Keras' backends: each beside itself, beside the others, and together in one job."""

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.keras.processes import PATIENCE, ROOT, server
from tests.lab.logs import verify
from tests.repetitions import usually

pytestmark = [pytest.mark.tensorflow, pytest.mark.cluster, pytest.mark.timeout(900)]

SCRIPT = ROOT / "tests/frameworks/backend_script.py"
KINDS = usually(["mlp"], soak=["cnn"])
BACKENDS = {"tensorflow": "worker", "jax": "jax", "torch": "torch"}


def require(backend: str) -> None:
    if find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed (scripts/install worker {BACKENDS[backend]})")


def installed_backends() -> list[str]:
    installed = [backend for backend in BACKENDS if find_spec(backend) is not None]
    if len(installed) < 2:
        pytest.skip("one backend only is installed (scripts/install worker jax torch)")
    return installed


def environment(backend: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("PS_HOSTS", "TF_CONFIG")}
    return {**kept, "KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT)}


def begin(backend: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, env=environment(backend), stderr=subprocess.PIPE, text=True)


def ended(started: list[subprocess.Popen[str]]) -> list[str]:
    """What each process wrote to its standard error. None is left behind."""
    with contextlib.ExitStack() as stack:
        for process in started:
            stack.callback(process.wait)
            stack.callback(process.kill)
        return [process.communicate(timeout=PATIENCE)[1] for process in started]


@pytest.mark.nightly
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_every_script_of_the_features_table_on_a_backend(backend: str) -> None:
    """Some of its cells, all of them in a soak; and what is of this backend only."""
    require(backend)
    tests = [f"tests/keras/{name}.py" for name in ("test_features_table", "test_other_backends")]
    tests.append("tests/frameworks/test_models.py")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(backend), capture_output=True, text=True, timeout=880, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]


@dataclass
class Trained:
    """By backend the folder of what it came to, alone and in the job of all, and what it said; the job's run."""

    folders: dict[str, Path]
    said: dict[str, str]
    run: Path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A process of each backend trains alone, and then as a worker of one job."""
    installed, folder = installed_backends(), tmp_path_factory.mktemp("backends")
    folders = {backend: folder / backend for backend in installed}
    run = folder / "run"
    with server("--workers", str(len(installed)), "--policy", "sync", "--out", str(run)) as address:
        started = []
        for index, (backend, own) in enumerate(folders.items()):
            own.mkdir()
            started.append(begin(backend, address, len(installed), index, own, *KINDS))
        said = ended(started)
        assert [process.returncode for process in started] == [0] * len(installed), said
    return Trained(folders, dict(zip(installed, said, strict=True)), run)


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_losses_agree_across_backends(kind: str, trained: Trained) -> None:
    losses = [np.load(folder / f"{kind}.npz")["losses"] for folder in trained.folders.values()]
    for found in losses:
        assert len(found) == 24
        np.testing.assert_allclose(found[:20], losses[0][:20], rtol=0, atol=1e-4)


def entries(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "decisions.jsonl").read_text().splitlines()]


def test_one_job_with_a_worker_of_each_backend(trained: Trained) -> None:
    """The log is right, and all end with the same weights: those of one worker on all of the data."""
    for backend, text in trained.said.items():
        assert f"computes with {backend} on cpu" in text
    log = entries(trained.run)
    assert verify(log).ok
    told = [(each["worker"], each["computes"].split(":")[0]) for each in log if each["kind"] == "join"]
    assert sorted(told) == [(f"w{index}", f"{backend} on cpu") for index, backend in enumerate(trained.said)]
    committed = {each["worker"] for each in log if each["kind"] == "commit"}
    assert committed == {f"w{index}" for index in range(len(trained.said))}
    first, *others = (weights(folder / "job.npz") for folder in trained.folders.values())
    for other in others:
        for one, value in zip(first, other, strict=True):
            np.testing.assert_array_equal(one, value)
    for one, value in zip(first, weights(next(iter(trained.folders.values())) / "mlp.npz"), strict=True):
        np.testing.assert_allclose(one, value, rtol=0, atol=1e-4)


def weights(file: Path) -> list[np.ndarray]:
    saved = np.load(file)
    return [saved[name] for name in saved.files if name != "losses"]
