"""``ps-lab chaos`` on real processes: a worker, a shard and the coordinator are killed, or stopped, or cut off, and
nothing is lost."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pslab.chaos.plan import Kind
from pslab.runs.folder import Run
from tests.cluster.cluster import entries_of
from tests.cluster.test_run_resume import lab

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

BATCHES = 100
# By which the first three disturbances come to one process of each role. Of those that stop one, a server stands still
# for a while and a worker for longer than its timeout.
SEEDS: dict[Kind, int] = {"kill": 140, "stop": 7654, "cut": 11}


def disturbed(folder: Path, kind: Kind) -> tuple[Run, list[dict[str, Any]]]:
    """A run of three disturbances of that kind, and what the report says of them."""
    options = ["--out", str(folder), "--runs", "1", "--no-reference", "--kind", kind, "--kills", "3"]
    options += ["--every", "8", "--seed", str(SEEDS[kind]), "--json"]
    file = str(Path(__file__).with_name("numpy.toml"))
    done = lab([sys.executable, "-m", "pslab", "chaos", file, *options])
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    (told,) = report["rounds"]
    assert report["ok"] and told["problems"] == [] and told["seed"] == SEEDS[kind]
    struck = told["disturbances"]
    assert {each["role"] for each in struck} == {"worker", "shard", "coordinator"}
    assert {each["kind"] for each in struck} == {kind}
    assert all(each["seconds_to_next_version"] > 0 for each in struck)
    run = Run(folder / "run-1")
    assert len(entries_of(run, "commit")) == 2 * BATCHES
    return run, struck


def test_a_process_of_each_role_is_killed(tmp_path: Path) -> None:
    run, struck = disturbed(tmp_path / "out", "kill")
    lost = [each for each in struck if each["role"] != "worker"]
    assert all(each["rolled_back"] is not None for each in lost)
    assert len(entries_of(run, "restore")) >= 1


@pytest.mark.parametrize("kind", ["stop", "cut"])
def test_a_process_of_each_role_is_stopped_or_cut_off(tmp_path: Path, kind: Kind) -> None:
    """Whether a server is given up for that depends on the machine: no more is said than that nothing is lost."""
    disturbed(tmp_path / "out", kind)
