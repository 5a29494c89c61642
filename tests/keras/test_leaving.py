"""Worker 0, which validates and saves for all, is killed in the middle of `fit`: another takes over, and keeps it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.keras.processes import PATIENCE, ROOT, server
from tests.lab.logs import verify
from tests.service.serving import wait_until

pytestmark = [pytest.mark.tensorflow, pytest.mark.cluster, pytest.mark.timeout(600)]


def begin(index: int, address: str, shared: Path) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "tests/keras/leaving_script.py"), str(index), str(shared)]
    environment = {**os.environ, "PS_HOSTS": address, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)


def joins(run: Path) -> int:
    """How often a worker 0 has joined."""
    # The last line may be on its way.
    lines = (run / "decisions.jsonl").read_text().rpartition("\n")[0].splitlines()
    entries = (json.loads(line) for line in lines if '"join"' in line)
    return sum(entry["kind"] == "join" and entry["worker"] == "w0" for entry in entries)


def test_another_worker_takes_over_from_a_killed_worker_0(tmp_path: Path) -> None:
    """Of the epoch in which it was killed nothing is validated and saved, and the log says so; from the next one on the
    other worker validates, saves and sets the rate. A new worker 0 has the epoch from the backup and the weights from
    the job, and leaves this to the other."""
    started: list[subprocess.Popen[str]] = []
    options = ("--workers", "2", "--policy", "sync", "--worker-timeout", "6", "--out", str(tmp_path / "run"))
    try:
        with server(*options) as address:
            first, other = started[:] = [begin(index, address, tmp_path) for index in range(2)]
            wait_until((tmp_path / "worker 0 begins 2").exists, "an epoch", PATIENCE)
            first.kill()
            first.wait()
            (tmp_path / "killed").touch()
            wait_until((tmp_path / "worker 1 begins 5").exists, "an epoch", PATIENCE)
            # Two epochs without worker 0, of which the other has saved the second and the third.
            assert numbers(tmp_path, "[0-9].keras") == [1, 3, 4]
            again = begin(0, address, tmp_path)
            started.append(again)
            came = lambda: again.poll() is not None or joins(tmp_path / "run") == 2  # noqa: E731
            wait_until(came, "a new worker 0", PATIENCE)
            assert again.poll() is None, again.communicate()[1]
            (tmp_path / "back").touch()
            said = {each: each.communicate(timeout=PATIENCE)[1] for each in (other, again)}
            assert other.returncode == again.returncode == 0, said
    finally:
        for each in started:
            each.kill()
            each.wait()
            assert each.stderr is not None
            each.stderr.close()
    told: list[dict[str, Any]] = [json.loads((tmp_path / f"{index}.json").read_text()) for index in range(2)]
    assert "w0, which validates, saves and sets the learning rate for all, left, is done" in said[other]
    assert "from the next one on this worker does that" in said[other]
    assert told[1]["epochs"] == [0, 1, 2, 3, 4] and len(told[1]["loss"]) == 5
    # All but the epoch in which worker 0 was killed.
    assert len(told[1]["val_loss"]) == 4
    # From the epoch of the other's backup on, validated by the other.
    assert told[0]["epochs"] == [4] and told[0]["val_loss"] == told[1]["val_loss"][-1:]
    assert numbers(tmp_path, "[0-9].keras") == [1, 3, 4, 5]
    # The loss falls from epoch to epoch, and the first was the largest.
    assert numbers(tmp_path, "best *.keras") == [1]
    header, *rows = (tmp_path / "log.csv").read_text().splitlines()
    assert "val_loss" in header and [row.split(",")[0] for row in rows] == ["0", "2", "3", "4"]
    assert told[0]["weight"] == told[1]["weight"]
    log = [json.loads(line) for line in (tmp_path / "run" / "decisions.jsonl").read_text().splitlines()]
    assert verify(log).ok
    assert any(entry["kind"] == "lost" and entry["worker"] == "w0" for entry in log)
    rates = [entry["learning_rate"] for entry in log if entry["kind"] == "rate" and entry["worker"] == "w1"]
    # Of the second epoch nobody has set it: the first one's, until the other takes over.
    assert rates == pytest.approx([0.1 / 4, 0.1 / 8, 0.1 / 16])


def numbers(folder: Path, pattern: str) -> list[int]:
    """Of the epochs that the files are of."""
    return sorted(int(path.stem.split()[-1]) for path in folder.glob(pattern))
