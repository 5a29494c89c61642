"""Under sync, n processes train as one does: bit for bit, run after run, however many servers there are."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from pslab.check.verify import check_run
from pslab.runs import WEIGHTS, Run
from pswire.exits import ExitCode
from tests.cluster.cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.tensorflow, pytest.mark.timeout(300)]

EPOCHS = {1: 2, 2: 3, 4: 6}  # by workers; 80, 60 and 60 versions
FILE = """
[run]
seed = 7
[cluster]
servers = {servers}
workers = {workers}
[policy]
name = "sync"
[optimizer]
name = "momentum"
learning_rate = 0.05
momentum = 0.9
[job]
module = "tests/cluster/even_digits.py:EvenDigits"
epochs = {epochs}
[job.options]
batch_size = 32
"""

Trained = Callable[[int, int], Run]


@pytest.fixture
def trained(cluster: Cluster) -> Trained:
    """trained(workers, servers): one more run of the experiment, by ps-lab."""

    def run(workers: int, servers: int) -> Run:
        folder = cluster.folder / f"{workers}-{servers}-{len(list(cluster.folder.iterdir()))}"
        file = folder.with_suffix(".toml")
        file.write_text(FILE.format(workers=workers, servers=servers, epochs=EPOCHS[workers]))
        lab = cluster.launch(f"lab-{folder.name}", "-m", "pslab", "run", str(file), "--out", str(folder))
        cluster.workers.append(lab)
        assert lab.wait_exit(120) == ExitCode.OK, lab.errors
        made = Run(folder)
        assert check_run(made).ok
        return made

    return run


def reference(cluster: Cluster, run: Run, workers: int) -> Path:
    out = cluster.folder / "reference"
    command = ("-m", "tests.cluster.reference", str(run.path / "experiment.toml"), str(workers), str(out))
    process = cluster.launch("reference", *command)
    cluster.workers.append(process)
    assert process.wait_exit(120) == 0, process.errors
    return out


def ulps(one: np.ndarray, other: np.ndarray) -> int:
    """The largest distance between corresponding float32 numbers, in steps from one to the next."""
    return int(np.max(np.abs(ordered(one) - ordered(other))))


def ordered(values: np.ndarray) -> np.ndarray:
    """float32 as integers that count representable numbers from zero."""
    bits = values.view(np.int32).astype(np.int64)
    return np.where(bits >= 0, bits, -(bits & 0x7FFFFFFF))


@pytest.mark.parametrize("workers", EPOCHS)
def test_n_workers_equal_one_process(cluster: Cluster, trained: Trained, workers: int) -> None:
    run = trained(workers, 2)
    assert run.summary.versions >= 50
    assert run.summary.histogram.keys() == {0}
    weights = load_file(run.path / WEIGHTS)
    out = reference(cluster, run, workers)
    alone = {kind: load_file(out / f"{kind}.safetensors") for kind in ("ranks", "combined", "keras")}
    for name, values in weights.items():
        distance = {kind: ulps(values, arrays[name]) for kind, arrays in alone.items()}
        farthest = {kind: float(np.max(np.abs(values - arrays[name]))) for kind, arrays in alone.items()}
        print(workers, name, "ulps", distance, "largest difference", farthest)
        # The same sums in the same order: the same bits.
        assert distance["ranks"] == 0
        # One sum over the whole batch instead of a sum of sums.
        for kind in ("combined", "keras"):
            np.testing.assert_allclose(values, alone[kind][name], rtol=1e-4, atol=1e-5)


def test_runs_agree_to_the_bit_whatever_the_servers(trained: Trained) -> None:
    runs = [trained(2, servers) for servers in (2, 2, 1)]
    assert len({run.summary.weights_sha256 for run in runs}) == 1
    assert None not in {run.summary.weights_sha256 for run in runs}
