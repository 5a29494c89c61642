"""The simulator against a run whose truth is known: one that was simulated itself."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pslab.compare.expected_table import prediction_json
from pslab.compare.predict import (
    REPEAT,
    Prediction,
    Row,
    predict,
    prediction_rows,
    relative_error,
    step_times_of,
)
from pslab.runs.folder import Run
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
    measured = step_times_of(simulate(tmp_path / "source", "async", simulation=TIMING, **DELAYS))
    assert measured.mean == pytest.approx(0.008, rel=0.05)
    run = simulate(tmp_path / "run", policy, POLICIES[policy], simulation=TIMING, run={"seed": 8}, **DELAYS)
    found = predict(run, measured)
    assert len(found.plays) == REPEAT
    row = by_name(found)
    assert abs(row["ms per version"].error) < 0.1
    stale = row["mean staleness"]
    assert abs(stale.predicted.mean - stale.real) <= 0.1 * max(1, stale.real)
    assert abs(row["max staleness"].predicted.mean - found.real.max_staleness) <= max(
        2, 0.3 * found.real.max_staleness
    )
    assert found.real.dropped == 0 or abs(row["dropped"].error) < 0.2
    assert all(sorted(play.drops) == ["w0", "w1", "w2", "w3"] for play in found.plays)


def by_name(prediction: Prediction) -> dict[str, Row]:
    return {row.what: row for row in prediction_rows(prediction)}


@pytest.mark.parametrize("policy", ["local-sgd", "easgd"])
def test_the_steps_of_a_ticket_of_several_are_measured_by_their_mean(tmp_path: Path, policy: str) -> None:
    run = simulate(tmp_path / "run", policy, {"steps": 5}, simulation=TIMING, **DELAYS)
    measured = step_times_of(run)
    assert measured.mean == pytest.approx(0.008, rel=0.05)
    assert {rank: len(times) for rank, times in measured.by_worker.items()} == dict.fromkeys(range(4), 200)
    assert abs(by_name(predict(run, measured))["ms per version"].error) < 0.1


def test_a_slow_worker_is_measured_as_one(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async", simulation={**TIMING, "factors": {"1": 5.0}})
    assert abs(by_name(predict(run, step_times_of(run)))["ms per version"].error) < 0.1


def test_a_ticket_that_was_granted_ahead_is_not_worked_on_before_the_one_before_it(tmp_path: Path) -> None:
    """Every step takes 2 s; the second ticket came a second after the first."""
    run = simulate(
        tmp_path / "run",
        "async",
        cluster={"workers": 1},
        simulation={"problem": "none", "batches": 4, "compute": "constant(2)"},
    )
    assert set(step_times_of(run).by_worker[0]) == {2.0}

    def ahead(records: list[Record]) -> None:
        grants = [record for record in records if record["kind"] == "grant"]
        for former, grant in pairwise(grants):
            grant |= {"ahead": True, "t": former["t"] + 1.0}
        records.sort(key=lambda record: record["t"])

    edit_log(run, ahead)
    assert step_times_of(run).by_worker[0] == (2.0,) * 4


def test_declared_times_and_the_own_seed_predict_the_simulation_itself_exactly(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "bounded", POLICIES["bounded"], simulation=TIMING, **DELAYS)
    found = predict(run, run.experiment, repeat=4)
    assert found.plays[0] == found.real
    assert all(row.within for row in prediction_rows(found))
    # Every other play is another throw of the dice.
    assert len({play.seconds_per_version for play in found.plays}) == 4


def test_what_another_experiment_declares_is_still_about_this_run(tmp_path: Path) -> None:
    """Its policy, its workers and its delays, with the computing times of the other."""
    run = simulate(tmp_path / "run", "bounded", POLICIES["bounded"], simulation=TIMING, **DELAYS)
    other = run.experiment.model_copy(
        update={
            "policy": run.experiment.policy.model_copy(update={"name": "sync", "knobs": {}}),
            "cluster": run.experiment.cluster.model_copy(update={"workers": 9}),
            "workers": {},
        }
    )
    found = predict(run, other, repeat=1)
    assert found.plays[0] == found.real


def test_a_run_that_was_evaluated_while_it_trained_is_predicted_without_its_evaluations(
    tmp_path: Path,
) -> None:
    run = simulate(tmp_path / "run", "async", simulation=TIMING)
    toml = run.path / "experiment.toml"
    job = '[job]\nmodule = "a:B"\nepochs = 1\nevaluate_every = "1 epoch"\npatience = 3\n'
    toml.write_text(f"{toml.read_text()}\n{job}", encoding="utf-8")
    run = Run(run.path)
    assert run.experiment.job.patience == 3
    assert by_name(predict(run, step_times_of(run)))["versions"].error == 0


def test_what_nobody_measured_is_no_miss(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async", simulation={**TIMING, "batches": 0, "seconds": 0.001}, **DELAYS)
    assert run.summary.versions == 0
    said = ps_lab("compare", run.path, "--predict", run.path / "experiment.toml", "--repeat", 2)
    # A run without a version is none that could be predicted; what it did not measure is no number either.
    assert said.code == 2 and "nan" not in said.out


def test_the_own_seed_keeps_the_injected_delays(tmp_path: Path) -> None:
    """Four barriers of four exponential delays each are a matter of chance; those of the run are known."""
    run = simulate(
        tmp_path / "run", "sync", simulation={**TIMING, "batches": 4, "compute": "constant(0.0001)"}, **DELAYS
    )
    found = by_name(predict(run, step_times_of(run)))["ms per version"]
    assert relative_error(found.plays[0], found.real) == pytest.approx(0, abs=0.01)
    assert found.predicted.deviation > 0.1 * found.real


def test_the_range_and_the_error_are_those_of_all_plays() -> None:
    row = Row("dropped", plays=(20.0, 26.0, 26.0), real=27.0, digits=0)
    assert (row.predicted.mean, row.predicted.count) == (24.0, 3)
    assert row.error == pytest.approx(-1 / 9)
    assert not row.within
    assert Row("dropped", plays=(20.0, 26.0), real=20.0, digits=0).within


def test_a_single_play_has_no_spread(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "sync", simulation=TIMING, **DELAYS)
    said = prediction_json(predict(run, step_times_of(run), repeat=1))
    row = said["rows"]["ms per version"]
    assert said["repeat"] == 1 and row["deviation"] is None
    assert row["least"] == row["most"] == row["predicted"] == row["own_seed"]["predicted"]


def test_a_run_that_ends_at_a_version(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async", simulation=TIMING, run={"versions": 50}, **DELAYS)
    found = predict(run, step_times_of(run))
    assert {play.versions for play in found.plays} == {found.real.versions} == {50}


def test_relative_errors() -> None:
    assert relative_error(11, 10) == pytest.approx(0.1)
    assert relative_error(0, 0) == 0
    assert relative_error(1, 0) != relative_error(1, 0)


def test_the_command(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "bounded", POLICIES["bounded"], simulation=TIMING, **DELAYS)
    said = ps_lab("compare", run.path, "--predict", run.path)
    assert said.code == 0 and "ms per version" in said.out and "dropped of w3" in said.out
    assert "10 simulated runs" in said.out
    declared = ("compare", run.path, "--predict", run.path / "experiment.toml", "--repeat", 3, "--json")
    _, line = ps_lab(*declared).lines
    assert line["repeat"] == 3
    stale = line["rows"]["mean staleness"]
    assert stale["own_seed"]["error"] == 0 and stale["within"]
    assert stale["least"] <= stale["predicted"] <= stale["most"]
    missing = ps_lab("compare", run.path, "--predict", tmp_path / "nothing.toml")
    assert missing.code == ExitCode.USAGE and "cannot be read" in missing.err
