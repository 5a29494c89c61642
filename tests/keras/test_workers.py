"""The same script as two processes under `sync`: what one process does with the combined batches."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.cluster, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
# Three interpreters load TensorFlow at once, on whatever machine this is.
PATIENCE = 240.0


@contextmanager
def server(*options: str) -> Iterator[str]:
    """The address of a ps-server whose optimizer is the job's. It ends by itself, with success."""
    command = [
        sys.executable,
        "-m",
        "psserver",
        "--ps-hosts",
        "127.0.0.1:0",
        "--json",
        "--optimizer",
        "from-job",
    ]
    with subprocess.Popen([*command, *options], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["address"]
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()


def train(address: str, kind: str, workers: int, folder: Path) -> list[list[np.ndarray]]:
    """The weights that each of `workers` scripts ends with."""
    environment = {**os.environ, "PS_HOSTS": address}
    started, outs = [], []
    try:
        for index in range(workers):
            outs.append(folder / f"{index}.npz")
            command = [
                sys.executable,
                str(ROOT / "tests/keras/fit_script.py"),
                kind,
                str(workers),
                str(index),
                str(outs[-1]),
            ]
            started.append(
                subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
            )
        for each in started:
            _, said = each.communicate(timeout=PATIENCE)
            assert each.returncode == 0, said
    finally:
        for each in started:
            each.kill()
            each.wait()
    return [[np.load(out)[name] for name in np.load(out).files] for out in outs]


@pytest.mark.parametrize("kind", ["dense", "batchnorm"])
def test_two_workers_equal_one_process_with_the_combined_batch(kind: str, tmp_path: Path) -> None:
    with server("--workers", "2") as address:
        first, second = train(address, kind, 2, tmp_path)
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)  # both end with the job's last version

    from tests.keras import fit_script as script

    plain, (x, y) = script.model(kind), script.data()
    # Batch k of both workers, side by side.
    steps = x.reshape(-1, 2 * script.BATCH, script.FEATURES), y.reshape(-1, 2 * script.BATCH, 3)
    for _ in range(script.EPOCHS):
        for step in zip(*steps, strict=True):
            plain.train_on_batch(*step)
    expected = plain.get_weights()
    if kind == "dense":
        for one, other in zip(first, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    else:
        # The mean of the means of two halves is the mean of all; variances and normalisation are each worker's own.
        np.testing.assert_allclose(first[2], expected[2], rtol=1e-5)
        assert np.abs(first[2] - first[3]).max() > 0.1
