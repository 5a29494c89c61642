"""Two processes: callbacks that stop, that write and that raise in one of them, and an end without the others."""

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

KINDS = ("files", "one stops", "one raises", "async own")


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
            if kind == "one raises":
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
                # Four jobs, one after another.
                _, said = each.communicate(timeout=2 * PATIENCE)
                assert each.returncode == 0, said
        finally:
            for each in started:
                each.kill()
                each.wait()
        first, second = (json.loads(out.read_text()) for out in outs)
    yield Jobs(first, second, folder)


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
