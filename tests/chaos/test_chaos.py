"""``ps-lab chaos`` on real processes: a worker, a shard and the coordinator are killed, or stopped, or cut off, and
nothing is lost."""

import json
from pathlib import Path
from typing import Any

import pytest

from pslab.chaos.campaign import Campaign, Disturbance, Kind, Progress
from pslab.check.checker import check_run
from pslab.runs.folder import Run
from tests.cluster.cluster import ROOT, entries_of
from tests.promises import promise
from tests.replay.command import ps_lab

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

STRIKES = 3
# By which the first three disturbances come to one process of each role. Of those that stop one, a server stands still
# for a while and a worker for longer than its timeout.
SEEDS: dict[Kind, int] = {"kill": 140, "stop": 7654, "cut": 11}


@pytest.fixture
def end_of_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with which the workers' data ends: it is there once the job has recovered from the last disturbance,
    however long that takes."""
    file, see = tmp_path / "end-of-data", Campaign.see

    def watched(
        campaign: Campaign, now: float, seen: Progress | None, more: bool = True
    ) -> Disturbance | None:
        due = see(campaign, now, seen, more)
        if sum(each.seconds is not None for each in campaign.outcomes) == STRIKES:
            file.touch()
        return due

    monkeypatch.setattr(Campaign, "see", watched)
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return file


def disturbed(
    folder: Path, kind: Kind, end_of_data: Path, *overrides: str
) -> tuple[Run, list[dict[str, Any]]]:
    """A run of three disturbances of that kind, and what the report says of them."""
    options = ["--out", str(folder), "--runs", "1", "--no-reference", "--kind", kind, "--kills", str(STRIKES)]
    options += ["--every", "8", "--seed", str(SEEDS[kind]), "--json"]
    arguments = json.dumps(["--seconds", "0.02", "--until", str(end_of_data)])
    for override in (f"job.arguments={arguments}", *overrides):
        options += ["--set", override]
    done = ps_lab("chaos", Path(__file__).with_name("numpy.toml"), *options)
    assert done.code == 0, done
    report = json.loads(done.out.splitlines()[-1])
    (told,) = report["rounds"]
    assert report["ok"] and told["problems"] == [] and told["seed"] == SEEDS[kind]
    struck = told["disturbances"]
    assert {each["role"] for each in struck} == {"worker", "shard", "coordinator"}
    assert {each["kind"] for each in struck} == {kind}
    assert all(each["seconds_to_next_version"] > 0 for each in struck)
    run = Run(folder / "run-1")
    for worker in ("w0", "w1"):
        batches = [entry["batch"] for entry in entries_of(run, "commit") if entry["worker"] == worker]
        assert sorted(batches) == list(range(len(batches))) and batches
    return run, struck


@promise("A job survives kill -9 of any process.")
def test_a_process_of_each_role_is_killed(tmp_path: Path, end_of_data: Path) -> None:
    run, struck = disturbed(tmp_path / "out", "kill", end_of_data)
    lost = [each for each in struck if each["role"] != "worker"]
    assert all(each["rolled_back"] is not None for each in lost)
    assert len(entries_of(run, "restore")) >= 1


@pytest.mark.parametrize("kind", ["stop", "cut"])
def test_a_process_of_each_role_is_stopped_or_cut_off(tmp_path: Path, end_of_data: Path, kind: Kind) -> None:
    """Whether a server is given up for that depends on the machine: no more is said than that nothing is lost."""
    disturbed(tmp_path / "out", kind, end_of_data)


def test_processes_are_killed_while_the_policy_changes(tmp_path: Path, end_of_data: Path) -> None:
    """Every fourth version another policy takes over: before, between and behind checkpoints and recoveries."""
    names = ("ssp", "async", "k-batch-async", "bounded", "async", "fedbuff")
    plan = ", ".join(
        f'{{after = "{4 * number + 2} versions", name = "{names[number % len(names)]}"}}'
        for number in range(60)
    )
    run, _ = disturbed(tmp_path / "out", "kill", end_of_data, f"policy.then=[{plan}]")
    changes = entries_of(run, "policy")
    assert len(changes) >= 3 and len(entries_of(run, "restore")) >= 1
    # The plan is followed in its order, and a change that was rolled back comes again.
    assert [change["policy"]["name"] for change in changes] == [
        names[number % len(names)] for number in range(len(changes))
    ]
    assert check_run(run).ok
