"""The simulator against a run whose truth is known: one that was simulated itself."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pslab.compare.predict import pace_of, predict, relative_error
from pswire.exits import ExitCode
from tests.replay.command import ps_lab
from tests.replay.simulated import Record, edit_log, simulate

DELAYS = {"workers": {str(n): {"delay": "exponential(0.05)"} for n in range(4)}}
POLICIES: dict[str, dict[str, Any]] = {
    "sync": {},
    "async": {},
    "bounded": {"aggregate": 2, "max_staleness": 2},
    "ssp": {"slack": 2},
}
TIMING = {"problem": "none", "batches": 200, "compute": "gamma(4, 0.002)"}


@pytest.mark.parametrize("policy", POLICIES)
def test_measured_on_one_run_it_predicts_another_within_ten_percent(tmp_path: Path, policy: str) -> None:
    pace = pace_of(simulate(tmp_path / "pace", "async", simulation=TIMING, **DELAYS))
    assert pace.mean == pytest.approx(0.008, rel=0.05)
    run = simulate(tmp_path / "run", policy, POLICIES[policy], simulation=TIMING, run={"seed": 8}, **DELAYS)
    found = predict(run, pace)
    assert abs(relative_error(found.predicted.seconds_per_version, found.real.seconds_per_version)) < 0.1
    assert abs(found.predicted.mean_staleness - found.real.mean_staleness) <= 0.1 * max(
        1, found.real.mean_staleness
    )
    assert abs(found.predicted.max_staleness - found.real.max_staleness) <= max(
        2, 0.3 * found.real.max_staleness
    )
    assert found.real.dropped == 0 or abs(relative_error(found.predicted.dropped, found.real.dropped)) < 0.3
    assert sorted(found.predicted.drops) == ["w0", "w1", "w2", "w3"]


@pytest.mark.parametrize("policy", ["local-sgd", "easgd"])
def test_the_steps_of_a_ticket_of_several_are_measured_by_their_mean(tmp_path: Path, policy: str) -> None:
    run = simulate(tmp_path / "run", policy, {"steps": 5}, simulation=TIMING, **DELAYS)
    pace = pace_of(run)
    assert pace.mean == pytest.approx(0.008, rel=0.05)
    assert {rank: len(times) for rank, times in pace.times.items()} == dict.fromkeys(range(4), 200)
    found = predict(run, pace)
    assert abs(relative_error(found.predicted.seconds_per_version, found.real.seconds_per_version)) < 0.1


def test_a_slow_worker_is_measured_as_one(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async", simulation={**TIMING, "factors": {"1": 5.0}})
    found = predict(run, pace_of(run))
    assert abs(relative_error(found.predicted.seconds_per_version, found.real.seconds_per_version)) < 0.1


def test_a_ticket_that_was_granted_ahead_is_not_worked_on_before_the_one_before_it(tmp_path: Path) -> None:
    """Every step takes 2 s; the second ticket came a second after the first."""
    run = simulate(
        tmp_path / "run",
        "async",
        cluster={"workers": 1},
        simulation={"problem": "none", "batches": 4, "compute": "constant(2)"},
    )
    assert set(pace_of(run).times[0]) == {2.0}

    def ahead(records: list[Record]) -> None:
        grants = [record for record in records if record["kind"] == "grant"]
        for former, grant in pairwise(grants):
            grant |= {"ahead": True, "t": former["t"] + 1.0}
        records.sort(key=lambda record: record["t"])

    edit_log(run, ahead)
    assert pace_of(run).times[0] == (2.0,) * 4


def test_declared_times_predict_the_simulation_itself_exactly(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "bounded", POLICIES["bounded"], simulation=TIMING, **DELAYS)
    found = predict(run, run.experiment)
    assert found.predicted == found.real


def test_a_run_that_ends_at_a_version(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async", simulation=TIMING, run={"versions": 50}, **DELAYS)
    found = predict(run, pace_of(run))
    assert found.predicted.versions == found.real.versions == 50


def test_relative_errors() -> None:
    assert relative_error(11, 10) == pytest.approx(0.1)
    assert relative_error(0, 0) == 0
    assert relative_error(1, 0) != relative_error(1, 0)


def test_the_command(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "bounded", POLICIES["bounded"], simulation=TIMING, **DELAYS)
    said = ps_lab("compare", run.path, "--predict", run.path)
    assert said.code == 0 and "ms per version" in said.out and "dropped of w3" in said.out
    _, line = ps_lab("compare", run.path, "--predict", run.path / "experiment.toml", "--json").lines
    assert line["rows"]["mean staleness"]["error"] == 0
    missing = ps_lab("compare", run.path, "--predict", tmp_path / "nothing.toml")
    assert missing.code == ExitCode.USAGE and "cannot be read" in missing.err
