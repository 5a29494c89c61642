"""``ps-lab chaos`` on real processes: a worker, a shard and the coordinator are killed, and nothing is lost."""

import json
import sys
from pathlib import Path

import pytest

from pslab.runs.folder import Run
from tests.cluster.cluster import entries_of
from tests.cluster.test_run_resume import lab

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

BATCHES = 100
# By which the first three kills are of one process of each role.
SEED = 140


def test_a_process_of_each_role_is_killed(tmp_path: Path) -> None:
    file = Path(__file__).with_name("numpy.toml")
    done = lab(
        [
            sys.executable,
            "-m",
            "pslab",
            "chaos",
            str(file),
            "--out",
            str(tmp_path / "out"),
            "--runs",
            "1",
            "--no-reference",
        ]
        + ["--kind", "kill", "--kills", "3", "--every", "8", "--seed", str(SEED), "--json"]
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    (told,) = report["rounds"]
    assert report["ok"] and told["problems"] == []
    struck = told["disturbances"]
    assert {each["role"] for each in struck} == {"worker", "shard", "coordinator"}
    assert all(each["seconds_to_next_version"] > 0 for each in struck)
    lost = [each for each in struck if each["role"] != "worker"]
    assert all(each["rolled_back"] is not None for each in lost)
    run = Run(tmp_path / "out" / "run-1")
    assert len(entries_of(run, "restore")) >= 1
    assert len(entries_of(run, "commit")) == 2 * BATCHES
