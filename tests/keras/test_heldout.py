"""What `fit` validates is in the run folder, as a job's evaluations are."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import psworker.keras
from pslab.runs.folder import Run
from tests.keras.in_process import in_threads, servers
from tests.promises import promise

pytestmark = [pytest.mark.usefixtures("jobs_end"), pytest.mark.tensorflow, pytest.mark.cluster]

EPOCHS = 2
X = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
Y = X.sum(axis=1)


@promise("The validations of `fit` are evaluations of the run, and the last one is in its summary.")
@pytest.mark.parametrize("workers", [1, 2])
def test_every_validation_is_an_evaluation_of_the_run(workers: int, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with servers(workers=workers, out=out) as hosts:

        def work(index: int) -> Any:
            keras.utils.set_random_seed(1)
            made = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            made.compile("sgd", "mse", metrics=["mae"], run_eagerly=True)
            data = X[index::workers], Y[index::workers]
            with psworker.keras.distribute(made, hosts, task_index=index, name=f"w{index}"):
                fitted = made.fit(*data, batch_size=8, epochs=EPOCHS, verbose=0, validation_data=(X, Y))
            return fitted.history

        history = in_threads(work, workers)[0]
    run = Run(out)
    found = [metric.metrics for metric in run.metrics() if metric.kind == "eval"]
    expected = [{name: history[f"val_{name}"][epoch] for name in ("loss", "mae")} for epoch in range(EPOCHS)]
    assert [dict(each) for each in found] == [pytest.approx(each, rel=1e-6) for each in expected]
    assert dict(run.summary.metrics) == pytest.approx(expected[-1], rel=1e-6)
