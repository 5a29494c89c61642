"""Worker 0, which validates and saves for all, is killed in the middle of `fit`, and another one takes its place."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.keras.test_workers import PATIENCE, ROOT, server
from tests.lab.logs import verify
from tests.service.serving import wait_until

pytestmark = [pytest.mark.tensorflow, pytest.mark.cluster, pytest.mark.timeout(600)]


def begin(index: int, address: str, shared: Path) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "tests/keras/leaving_script.py"), str(index), str(shared)]
    environment = {**os.environ, "PS_HOSTS": address, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)


def joins(run: Path) -> int:
    """How often a worker 0 has joined."""
    lines = (run / "decisions.jsonl").read_text().splitlines()
    # The last line may be on its way.
    entries = (json.loads(line) for line in lines if line.endswith("}") and '"join"' in line)
    return sum(entry["kind"] == "join" and entry["worker"] == "w0" for entry in entries)


def test_nobody_takes_over_from_a_killed_worker_0_until_another_one_joins_in_its_place(
    tmp_path: Path,
) -> None:
    """The other worker goes on alone, without validation and files, and says so; the new worker 0 has the epoch from
    its backup and the weights from the job, and does again what worker 0 does."""
    started: list[subprocess.Popen[str]] = []
    options = ("--workers", "2", "--policy", "sync", "--worker-timeout", "6", "--out", str(tmp_path / "run"))
    try:
        with server(*options) as address:
            first, other = started[:] = [begin(index, address, tmp_path) for index in range(2)]
            wait_until((tmp_path / "worker 0 begins 2").exists, "an epoch", PATIENCE)
            first.kill()
            first.wait()
            (tmp_path / "killed").touch()
            wait_until((tmp_path / "worker 1 begins 4").exists, "an epoch", PATIENCE)
            # Two epochs without worker 0.
            assert sorted(path.name for path in tmp_path.glob("*.keras")) == ["1.keras"]
            again = begin(0, address, tmp_path)
            started.append(again)
            wait_until(lambda: joins(tmp_path / "run") == 2, "a new worker 0", PATIENCE)
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
    assert "an epoch ended without validation: worker 0" in said[other]
    assert told[1]["epochs"] == [0, 1, 2, 3] and len(told[1]["loss"]) == 4
    # Of its four epochs the first, and perhaps the last, were validated.
    assert 1 <= len(told[1]["val_loss"]) <= 2
    # From the epoch of its backup on.
    assert told[0]["epochs"] == [1, 2, 3] and len(told[0]["val_loss"]) == 3
    assert sorted(path.name for path in tmp_path.glob("*.keras")) == [f"{n}.keras" for n in (1, 2, 3, 4)]
    assert told[0]["weight"] == told[1]["weight"]
    log = [json.loads(line) for line in (tmp_path / "run" / "decisions.jsonl").read_text().splitlines()]
    assert verify(log).ok
    assert any(entry["kind"] == "lost" and entry["worker"] == "w0" for entry in log)
