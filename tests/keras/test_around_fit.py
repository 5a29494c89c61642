"""Two workers: history, validation, callbacks that stop and that write, and what goes wrong in one of them."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.keras.test_workers import PATIENCE, ROOT, server
from tests.lab.logs import verify
from tests.promises import promise

pytestmark = [pytest.mark.tensorflow, pytest.mark.cluster, pytest.mark.timeout(600)]

KINDS = (
    "plain",
    "files",
    "early",
    "one stops",
    "one raises",
    "uneven",
    "labels",
    "nan",
    "async all",
    "async own",
)


@dataclass
class Jobs:
    """What each of two workers said of each job, by kind, and where the servers' logs and the shared files are."""

    first: dict[str, Any]
    second: dict[str, Any]
    folder: Path

    def log(self, kind: str) -> list[dict[str, Any]]:
        path = self.folder / f"run {kind}" / "decisions.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def stop(self, kind: str) -> dict[str, Any]:
        return next(entry for entry in self.log(kind) if entry["kind"] == "stop")


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    folder = tmp_path_factory.mktemp("around")
    with ExitStack() as stack:
        places = []
        for kind in KINDS:
            policy = "async" if kind.startswith("async") else "sync"
            options = ("--workers", "2", "--policy", policy, "--out", str(folder / f"run {kind}"))
            if kind in ("one raises", "labels"):
                options = (*options, "--allow-missing")
            places.append(f"{kind}={stack.enter_context(server(*options))}")
        outs = [folder / f"{index}.json" for index in range(2)]
        script = str(ROOT / "tests/keras/around_script.py")
        started = [
            subprocess.Popen(
                [sys.executable, script, str(index), str(out), str(folder), *places],
                cwd=ROOT,
                stderr=subprocess.PIPE,
                text=True,
            )
            for index, out in enumerate(outs)
        ]
        try:
            for each in started:
                # Ten jobs, one after another.
                _, said = each.communicate(timeout=2 * PATIENCE)
                assert each.returncode == 0, said
        finally:
            for each in started:
                each.kill()
                each.wait()
        first, second = (json.loads(out.read_text()) for out in outs)
    yield Jobs(first, second, folder)


def test_history_and_validation_are_those_of_one_process_with_the_combined_batches(jobs: Jobs) -> None:
    from tests.keras import around_script as script

    first, second = jobs.first["plain"], jobs.second["plain"]
    assert first["history"] == second["history"]
    assert first["version"] == second["version"] and first["weight"] == second["weight"]
    plain, (x, y) = script.model(), script.data()
    # Batch k of both workers, side by side.
    order = np.arange(script.SAMPLES).reshape(-1, script.BATCH, 2).transpose(0, 2, 1).reshape(-1)
    history = plain.fit(
        *(x[order], y[order]),
        batch_size=2 * script.BATCH,
        epochs=script.EPOCHS,
        shuffle=False,
        verbose=0,
        validation_data=script.data(2),
    ).history
    assert history.keys() == first["history"].keys()
    for name, values in history.items():
        # The AUC of a training epoch is of the versions before each update, and adds up exactly.
        np.testing.assert_allclose(first["history"][name], values, rtol=2e-5, err_msg=name)


@promise("One worker validates and writes files for all.")
def test_one_worker_validates_and_writes_files_for_all(jobs: Jobs) -> None:
    assert jobs.first["files"]["history"] == jobs.second["files"]["history"]
    assert sorted(path.name for path in jobs.folder.glob("*.keras")) == ["1.keras", "2.keras", "3.keras"]
    header, *rows = (jobs.folder / "log.csv").read_text().splitlines()
    assert len(rows) == 3 and "val_loss" in header
    import keras

    # Saved behind the last update of the last epoch, which is the job's last version.
    saved = keras.models.load_model(jobs.folder / "3.keras")
    assert float(np.sum(saved.get_weights()[0])) == jobs.first["files"]["weight"]


def test_early_stopping_stops_all_in_the_same_epoch(jobs: Jobs) -> None:
    lengths = [len(told["early"]["history"]["loss"]) for told in (jobs.first, jobs.second)]
    assert lengths == [2, 2]
    assert jobs.stop("early")["success"]
    assert "ended the job: a callback stopped its fit in epoch 2" in jobs.stop("early")["reason"]


def test_a_callback_of_one_worker_stops_the_job_and_all_leave_cleanly(jobs: Jobs) -> None:
    assert "error" not in jobs.first["one stops"] and "error" not in jobs.second["one stops"]
    assert jobs.stop("one stops")["reason"] == "w1 ended the job: a callback stopped its fit in epoch 2"
    assert jobs.first["one stops"]["version"] == jobs.second["one stops"]["version"] < 18
    assert jobs.first["one stops"]["weight"] == jobs.second["one stops"]["weight"]


def test_a_callback_that_raises_ends_its_own_worker_only(jobs: Jobs) -> None:
    assert jobs.second["one raises"]["error"] == "ValueError: a callback of mine has failed"
    assert len(jobs.first["one raises"]["history"]["loss"]) == 3
    (left,) = [e for e in jobs.log("one raises") if e["kind"] == "leave" and e["worker"] == "w1"]
    assert left["reason"] == "ValueError in fit"


def test_a_dataset_that_ends_early_holds_nobody_up(jobs: Jobs) -> None:
    assert "error" not in jobs.first["uneven"] and "error" not in jobs.second["uneven"]
    assert len(jobs.first["uneven"]["history"]["loss"]) == len(jobs.second["uneven"]["history"]["loss"]) == 3
    assert jobs.stop("uneven")["success"]
    assert jobs.first["uneven"]["version"] == jobs.second["uneven"]["version"]


def test_labels_that_are_nan_end_their_worker_with_a_sentence(jobs: Jobs) -> None:
    assert "10 batches in a row gave no finite gradient" in jobs.second["labels"]["error"]
    assert len(jobs.first["labels"]["history"]["loss"]) == 3


def test_terminate_on_nan_in_one_worker_ends_the_job_for_all(jobs: Jobs) -> None:
    """Only the second worker has a loss that is no number; that batch never counts."""
    assert "error" not in jobs.first["nan"] and "error" not in jobs.second["nan"]
    assert jobs.stop("nan")["success"]
    assert jobs.stop("nan")["reason"] == "w1 ended the job: a callback stopped its fit in epoch 1"
    assert jobs.first["nan"]["weight"] == jobs.second["nan"]["weight"]
    assert np.isfinite(jobs.first["nan"]["weight"])


def test_without_a_barrier_of_the_policy_workers_meet_at_the_end_of_an_epoch(jobs: Jobs) -> None:
    first, second = jobs.first["async all"], jobs.second["async all"]
    assert first["history"] == second["history"] and len(first["history"]["val_loss"]) == 3
    assert first["weight"] == second["weight"]


def test_with_metrics_of_ones_own_nobody_waits_at_the_end_of_an_epoch(jobs: Jobs) -> None:
    """The first worker stands in its first epoch until the second has ended its last."""
    first, second = jobs.first["async own"], jobs.second["async own"]
    assert "error" not in first and "error" not in second
    for told in (first, second):
        assert len(told["history"]["loss"]) == len(told["history"]["val_loss"]) == 3
    assert first["history"]["loss"] != second["history"]["loss"]
    assert first["weight"] == second["weight"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_logs_pass_all_checks(jobs: Jobs, kind: str) -> None:
    found = verify(jobs.log(kind))
    assert found.ok, found.violations
