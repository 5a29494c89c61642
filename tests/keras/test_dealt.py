"""`fit` on data that the coordinator deals: each sample counts once per epoch over all workers."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import psworker.keras
from pslab.check.checker import check_run
from pslab.runs.folder import Run
from psworker.keras.fit.dealt import DealtData
from tests.cluster.cluster import entries_of
from tests.keras import fit_script as script
from tests.keras.test_workers import server, train

pytestmark = [pytest.mark.tensorflow, pytest.mark.cluster, pytest.mark.timeout(600)]


class Batches(keras.utils.PyDataset):
    """The script's data, a batch at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.y = script.data()

    def __len__(self) -> int:
        return len(self.x) // script.BATCH

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        chosen = slice(index * script.BATCH, (index + 1) * script.BATCH)
        return self.x[chosen], self.y[chosen]


@pytest.mark.parametrize("kind", ["arrays", "PyDataset"])
def test_one_worker_does_what_plain_fit_does(kind: str) -> None:
    """Weights and history, to the bit, where nothing is shuffled."""
    x, y = script.data()
    given: dict[str, Any] = (
        {"x": Batches()} if kind == "PyDataset" else {"x": x, "y": y, "batch_size": script.BATCH}
    )
    common = {"epochs": script.EPOCHS, "shuffle": False, "verbose": 0, "validation_data": (x, y)}
    plain = script.model("dense")
    expected = plain.fit(**given, **common)
    made = script.model("dense")
    with server("--workers", "1") as address:
        with psworker.keras.distribute(made, address, sharding="units"):
            found = made.fit(**given, **common)
    for one, other in zip(made.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert found.history["loss"] == expected.history["loss"]
    assert found.history["val_loss"] == pytest.approx(expected.history["val_loss"], rel=1e-6)


def test_two_workers_share_what_both_were_given(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with server("--workers", "2", "--policy", "async", "--out", str(out)) as address:
        first, second = train(address, "dealt", 2, tmp_path)
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)
    run = Run(out)
    assert run.summary.reason == "all work units are done"
    verdict = check_run(run)
    assert verdict.ok, verdict.violations
    samples = sum(commit["samples"] for commit in entries_of(run, "commit"))
    assert samples == script.EPOCHS * (script.SAMPLES - 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"validation_split": 0.2}, "give validation_data"),
        ({"class_weight": {0: 1.0}}, "give sample_weight"),
        ({"steps_per_epoch": 5}, "an epoch ends when each unit has counted"),
        ({"x": iter([1])}, "deals arrays and keras.utils.PyDataset"),
        ({"y": np.zeros((3, 3))}, r"arrays of equally many samples, at least one, got \[3, 96\]"),
    ],
)
def test_what_cannot_be_dealt_is_said(arguments: dict[str, Any], message: str) -> None:
    x, y = script.data()
    with pytest.raises(psworker.keras.FitError, match=message):
        DealtData({"x": x, "y": y, **arguments})


def test_words_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match='expected "none" or "units"'):
        psworker.keras.distribute(script.model("dense"), "127.0.0.1:1", sharding="batch")
    with pytest.raises(ValueError, match='metrics: expected "all" or "own"'):
        psworker.keras.distribute(script.model("dense"), "127.0.0.1:1", metrics="some")
    with pytest.raises(ValueError, match="one fit per job"):
        psworker.keras.distribute(script.model("dense"), "127.0.0.1:1", sharding="units", stay=True)
    made = psworker.keras.distribute(script.model("dense"), "127.0.0.1:1", sharding="units")
    with pytest.raises(psworker.keras.FitError, match=r"expected fit before \.session"):
        _ = made.session
