"""Two workers: callbacks that stop, that write and that raise in one of them, and an end without the others."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import psworker.keras
from pslab.check.checker import check_run
from pslab.runs.folder import Run
from tests.keras.in_process import in_threads, servers
from tests.keras.two_workers import BATCH, EPOCHS, SAMPLES, data, model, wait_for
from tests.promises import promise

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.timeout(600),
    # Of a CSVLogger that writes nothing: Keras opens its file, and nobody closes it.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]


class At(keras.callbacks.Callback):  # type: ignore[misc]
    """Does something at the end of an epoch."""

    def __init__(self, epoch: int, action: Callable[[Any], object]) -> None:
        super().__init__()
        self.epoch, self.action = epoch, action

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == self.epoch:
            self.action(self.model)


def trained(
    out: Path, *callbacks: list[Any], policy: str = "sync", metrics: str = "all"
) -> tuple[dict[str, Any], dict[str, Any], Run]:
    """`fit` with each worker's callbacks: what each came to, and the run, whose log passes all checks."""
    models, held = [model(), model()], data(2)

    def work(index: int) -> dict[str, Any]:
        made, told = models[index], dict[str, Any]()
        x, y = (each[index::2] for each in data())
        job = psworker.keras.distribute(made, hosts, task_index=index, metrics=metrics)
        common = {"batch_size": BATCH, "epochs": EPOCHS, "shuffle": False, "verbose": 0}
        try:
            told["history"] = made.fit(
                *(x, y),
                **common,
                validation_data=held,
                validation_batch_size=SAMPLES,
                callbacks=callbacks[index],
            ).history
        except ValueError as error:
            told["error"] = error
        told["version"] = job.version
        job.close()
        return {**told, "weight": float(np.sum(made.get_weights()[0]))}

    with servers(workers=2, policy=policy, out=out) as hosts:
        first, second = in_threads(work, 2)
    run = Run(out)
    assert check_run(run).violations == ()
    return first, second, run


def facts(run: Run, kind: str) -> list[Any]:
    return [read.fact for read in run.decisions() if read.fact.kind == kind]


@promise("One worker validates and writes files for all.")
def test_one_worker_validates_and_writes_files_for_all(tmp_path: Path) -> None:
    def writers(folder: Path) -> list[Any]:
        folder.mkdir()
        saved = keras.callbacks.ModelCheckpoint(str(folder / "{epoch}.keras"), save_freq="epoch")
        return [saved, keras.callbacks.CSVLogger(str(folder / "log.csv"))]

    mine, others = tmp_path / "first", tmp_path / "second"
    first, second, _ = trained(tmp_path / "run", writers(mine), writers(others))
    assert first["history"] == second["history"]
    assert sorted(path.name for path in mine.iterdir()) == ["1.keras", "2.keras", "3.keras", "log.csv"]
    assert not list(others.iterdir())
    header, *rows = (mine / "log.csv").read_text().splitlines()
    assert len(rows) == EPOCHS and "val_loss" in header
    # Saved behind the last update of the last epoch, which is the job's last version.
    saved = keras.models.load_model(mine / "3.keras")
    assert float(np.sum(saved.get_weights()[0])) == first["weight"]


def test_a_callback_of_one_worker_stops_the_job_and_all_leave_cleanly(tmp_path: Path) -> None:
    stops = At(1, lambda made: setattr(made, "stop_training", True))
    first, second, run = trained(tmp_path / "run", [], [stops])
    assert "error" not in first and "error" not in second
    assert facts(run, "stop")[0].reason == "w1 ended the job: a callback stopped its fit in epoch 2"
    assert first["version"] == second["version"] < EPOCHS * SAMPLES // BATCH // 2
    assert first["weight"] == second["weight"]


def test_a_callback_that_raises_ends_its_own_worker_only(tmp_path: Path) -> None:
    def fail(made: Any) -> None:
        raise ValueError("a callback of mine has failed")

    first, second, run = trained(tmp_path / "run", [], [At(0, fail)])
    assert "a callback of mine has failed" in str(second["error"])
    assert len(first["history"]["loss"]) == EPOCHS
    assert [each.reason for each in facts(run, "leave") if each.worker == "w1"] == ["ValueError in fit"]


def test_with_metrics_of_ones_own_nobody_waits_at_the_end_of_an_epoch(tmp_path: Path) -> None:
    """The first worker stands in its first epoch until the second has ended its last."""
    last = tmp_path / "last epoch"
    waits, ends = At(0, lambda _: wait_for(last)), At(EPOCHS - 1, lambda _: last.touch())
    first, second, _ = trained(tmp_path / "run", [waits], [ends], policy="async", metrics="own")
    for told in (first, second):
        assert len(told["history"]["loss"]) == len(told["history"]["val_loss"]) == EPOCHS
    assert first["history"]["loss"] != second["history"]["loss"]
    assert first["weight"] == second["weight"]
