"""Under sync, n processes train as one does: bit for bit, run after run, however many servers there are."""

from collections.abc import Iterator

import numpy as np
import pytest
from safetensors.numpy import load_file

from pslab.check.checker import check_run
from pslab.runs.folder import WEIGHTS, Run
from tests.cluster.cluster import Cluster
from tests.repetitions import SOAK

pytestmark = [pytest.mark.cluster, pytest.mark.tensorflow, pytest.mark.timeout(600)]

# By workers: 60, 80 and 60 versions. tests/keras/test_fit.py has one worker, and each compiles: others are for soaks.
EPOCHS = {2: 3, **({1: 2, 4: 6} if SOAK else {})}
FILE = """
[run]
seed = 7
deterministic = true
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

KINDS = ("ranks", "combined", "keras")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("sync")) as made:
        yield made


def train(lab: Cluster, name: str, workers: int, servers: int) -> Run:
    """One run of the experiment, by ps-lab."""
    folder, file = lab.folder / name, lab.folder / f"{name}.toml"
    file.write_text(FILE.format(workers=workers, servers=servers, epochs=EPOCHS[workers]))
    finish(lab, f"lab-{name}", "-m", "pslab", "run", str(file), "--out", str(folder))
    run = Run(folder)
    assert check_run(run).ok
    return run


def finish(lab: Cluster, name: str, *command: str) -> None:
    process = lab.launch(name, *command)
    lab.workers.append(process)
    assert process.wait_exit(patience=180) == 0, f"{process.lines}\n{process.errors}"


@pytest.fixture(scope="module")
def runs(lab: Cluster) -> dict[int, Run]:
    """One run per number of workers, on two servers, and the references beside it."""
    made = {workers: train(lab, f"of-{workers}", workers, servers=2) for workers in EPOCHS}
    finish(lab, "reference", "-m", "tests.cluster.reference", *(str(run.path) for run in made.values()))
    return made


def ulps(one: np.ndarray, other: np.ndarray) -> int:
    """The largest distance between corresponding float32 numbers, in steps from one to the next."""
    return int(np.max(np.abs(ordered(one) - ordered(other))))


def ordered(values: np.ndarray) -> np.ndarray:
    """float32 as integers that count representable numbers from zero."""
    bits = values.view(np.int32).astype(np.int64)
    return np.where(bits >= 0, bits, -(bits & 0x7FFFFFFF))


@pytest.mark.parametrize("workers", EPOCHS)
def test_n_workers_equal_one_process(runs: dict[int, Run], workers: int) -> None:
    run = runs[workers]
    assert run.summary.versions >= 50
    assert run.summary.histogram.keys() == {0}
    alone = {kind: load_file(run.path / f"reference-{kind}.safetensors") for kind in KINDS}
    for name, values in load_file(run.path / WEIGHTS).items():
        distance = {kind: ulps(values, arrays[name]) for kind, arrays in alone.items()}
        farthest = {kind: float(np.max(np.abs(values - arrays[name]))) for kind, arrays in alone.items()}
        print(workers, name, "ulps", distance, "largest difference", farthest)
        # The same sums in the same order: the same bits.
        assert distance["ranks"] == 0
        if workers == 1:
            assert distance["keras"] == 0
        # One sum over the combined batch instead of a sum of n sums.
        assert max(farthest.values()) <= 1e-6


def test_runs_agree_to_the_bit_whatever_the_servers(lab: Cluster, runs: dict[int, Run]) -> None:
    # In a soak the same run a second time, too: otherwise that on another number of servers is the second one.
    others = [train(lab, f"on-{servers}-servers", 2, servers) for servers in ((1, 2) if SOAK else (1,))]
    hashes = [run.summary.weights_sha256 for run in (runs[2], *others)]
    assert None not in hashes
    assert len(set(hashes)) == 1
