"""Predictions of runs whose truth is known: they were simulated themselves."""

import io
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pslab.compare.groups import grouped
from pslab.experiment import Experiment
from pslab.predict.prediction import Prediction, PredictionRow, relative_error
from pslab.predict.prediction import predict as predict_group
from pslab.predict.simulation import REPEAT
from pslab.predict.steps import StepTimes, step_times_of
from pslab.predict.table import prediction_table
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
SECONDS = "seconds per version"
TIMING = {"problem": "none", "batches": 120, "compute": "gamma(4, 0.002)"}


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(name, marks=pytest.mark.nightly if name in ("bounded", "ssp") else ())
        for name in POLICIES
    ],
)
def test_measured_on_one_run_it_predicts_another_within_ten_percent(tmp_path: Path, policy: str) -> None:
    pace = step_times_of(simulate(tmp_path / "source", "async", simulation=TIMING, **DELAYS))
    assert pace.mean == pytest.approx(0.008, rel=0.05)
    run = simulate(tmp_path / "run", policy, POLICIES[policy], simulation=TIMING, run={"seed": 8}, **DELAYS)
    found = predict(run, pace)
    assert len(found.plays) == REPEAT
    (real,), row = found.measured, by_name(found)
    assert abs(row[SECONDS].error) < 0.1
    stale = row["mean staleness"]
    assert abs(stale.predicted.mean - stale.real.mean) <= 0.1 * max(1, stale.real.mean)
    assert abs(row["largest staleness"].predicted.mean - real["largest staleness"]) <= max(
        2, 0.3 * real["largest staleness"]
    )
    assert real["dropped"] == 0 or abs(row["dropped"].error) < 0.2
    drops = {f"dropped of w{number}" for number in range(4)}
    assert all(not play["dropped"] or drops <= play.keys() for play in found.plays)


def predict(run: Run, pace: Experiment | StepTimes | None, repeat: int = REPEAT) -> Prediction:
    (group,) = grouped([run])
    return predict_group(group, pace, repeat)


def by_name(prediction: Prediction) -> dict[str, PredictionRow]:
    return {row.what: row for row in prediction.rows}


@pytest.mark.parametrize("policy", ["local-sgd", "easgd"])
def test_the_steps_of_a_ticket_of_several_are_measured_by_their_mean(tmp_path: Path, policy: str) -> None:
    run = simulate(tmp_path / "run", policy, {"steps": 5}, simulation=TIMING, **DELAYS)
    pace = step_times_of(run)
    assert pace.mean == pytest.approx(0.008, rel=0.05)
    assert {rank: len(times) for rank, times in pace.by_worker.items()} == dict.fromkeys(
        range(4), TIMING["batches"]
    )
    assert abs(by_name(predict(run, pace))[SECONDS].error) < 0.1


def test_a_slow_worker_is_measured_as_one(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async", simulation={**TIMING, "factors": {"1": 5.0}})
    assert abs(by_name(predict(run, step_times_of(run)))[SECONDS].error) < 0.1


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
    assert found.plays[0] == found.measured[0]
    assert all(row.within for row in found.rows if row.simulated)
    # Every other play is another throw of the dice.
    assert len({play["seconds per version"] for play in found.plays}) == 4


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
    assert found.plays[0] == found.measured[0]


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


def test_what_cannot_be_simulated_is_said_and_the_rest_is_shown(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async", simulation={**TIMING, "batches": 0, "seconds": 0.001}, **DELAYS)
    assert run.summary.versions == 0
    said = ps_lab("predict", run.path, "--repeat", 2)
    assert (
        said.code == 0
        and "nan" not in said.out
        and "not simulated: the simulation made no version" in said.out
    )
    (run.path / "experiment.toml").unlink()
    bare = ps_lab("predict", run.path)
    assert bare.code == 0 and "not simulated:" in bare.out and "mean staleness" in bare.out


def test_the_own_seed_keeps_the_injected_delays(tmp_path: Path) -> None:
    """Four barriers of four exponential delays each are a matter of chance; those of the run are known."""
    run = simulate(
        tmp_path / "run", "sync", simulation={**TIMING, "batches": 4, "compute": "constant(0.0001)"}, **DELAYS
    )
    found = by_name(predict(run, step_times_of(run)))[SECONDS]
    assert relative_error(found.simulated[0], found.real.mean) == pytest.approx(0, abs=0.01)
    assert found.predicted.deviation > 0.1 * found.real.mean


def test_the_range_and_the_error_are_those_of_all_plays() -> None:
    row = PredictionRow("dropped", (27.0,), (20.0, 26.0, 26.0))
    assert (row.predicted.mean, row.predicted.count) == (24.0, 3)
    assert row.error == pytest.approx(-1 / 9)
    assert not row.within
    assert PredictionRow("dropped", (20.0,), (20.0, 26.0)).within


def test_a_single_play_has_no_spread(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "sync", simulation=TIMING, **DELAYS)
    (said,) = ps_lab("predict", run.path, "--pace", run.path, "--repeat", 1, "--json").lines
    row = said["rows"][SECONDS]["simulated"]
    assert said["repeat"] == 1 and row["deviation"] is None
    assert row["least"] == row["most"] == row["mean"] == row["own_seed"]["value"]


def test_a_run_that_ends_at_a_version(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async", simulation=TIMING, run={"versions": 50}, **DELAYS)
    found = predict(run, step_times_of(run))
    assert {play["versions"] for play in found.plays} == {found.measured[0]["versions"]} == {50}


def test_relative_errors() -> None:
    assert relative_error(11, 10) == pytest.approx(0.1)
    assert relative_error(0, 0) == 0
    assert relative_error(1, 0) != relative_error(1, 0)


def test_runs_that_differ_by_their_seed_are_one_row_with_their_laws(tmp_path: Path) -> None:
    runs = [simulate(tmp_path / str(seed), "async", run={"seed": seed}, simulation=TIMING) for seed in (1, 2)]
    (group,) = grouped(runs)
    stale = by_name(predict_group(group, None, 2))["mean staleness"]
    assert stale.real.count == 2 and stale.law is not None and stale.law.expected == 3
    assert stale.simulated[0] == stale.measured[0]


@pytest.mark.parametrize("width", [80, 120, 300])
def test_the_table_keeps_every_label_and_number(tmp_path: Path, width: int) -> None:
    knobs = {"max_staleness": 12, "on_stale": "downweight"}
    paths = [
        simulate(tmp_path / name, "bounded", {**knobs, "aggregate": n}, simulation=TIMING)
        for name, n in SIZES
    ]
    found = [predict_group(group, None, 1) for group in grouped(paths)]
    screen = Console(width=width, file=io.StringIO(), record=True)
    screen.print(prediction_table(found))
    text = screen.export_text()
    assert text.count("mean staleness") == 2 and "aggregate=2" in "".join(text.split()) and "…" not in text


SIZES = (("one", 1), ("two", 2))


def test_the_command(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "bounded", POLICIES["bounded"], simulation=TIMING, **DELAYS)
    said = ps_lab("predict", run.path, "--pace", run.path)
    assert said.code == 0 and SECONDS in said.out and "dropped of w3" in said.out
    assert "of 10 runs" in said.out and "<= 2" in said.out and "the policy's guarantee" in said.out
    (line,) = ps_lab("predict", run.path, "--repeat", 3, "--json").lines
    assert line["repeat"] == 3 and line["runs"] == [str(run.path)] and line["not_simulated"] is None
    stale = line["rows"]["mean staleness"]["simulated"]
    assert stale["own_seed"]["error"] == 0 and stale["within"]
    assert stale["least"] <= stale["mean"] <= stale["most"]
    assert line["rows"]["largest staleness"]["theory"]["value"] == 2
    declared = ps_lab("predict", run.path, "--pace", run.path / "experiment.toml", "--repeat", 3, "--json")
    assert declared.lines == [line]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--pace", "nothing.toml"), "cannot be read"),
        (("--set", "cluster.workers=2"), "--set: expected an EXPERIMENT"),
        (("--vary", "cluster.workers=2,3"), "--vary: expected an EXPERIMENT"),
    ],
)
def test_what_cannot_be_predicted(options: tuple[str, ...], message: str, tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async", simulation=TIMING)
    said = ps_lab("predict", run.path, *options)
    assert said.code == ExitCode.USAGE and message in said.err


def test_another_policy_is_predicted_at_the_pace_of_a_run(tmp_path: Path) -> None:
    """What its own policy makes of the steps again, and what a barrier would have made of them."""
    run = simulate(tmp_path / "run", "async", simulation=TIMING)
    file = run.path / "experiment.toml"
    said = ps_lab("predict", file, "--vary", "policy.name=async,sync", "--pace", run.path, "--json")
    assert said.code == ExitCode.OK, said.err
    own, other = (each["rows"]["seconds per version"]["simulated"]["mean"] for each in said.lines)
    assert own == pytest.approx(run.summary.seconds_per_version, rel=0.1) and other > 1.5 * own
    again = ps_lab("predict", file, "--pace", file, "--json")
    assert again.code == ExitCode.OK and again.lines[0]["rows"]["mean staleness"]["measured"]["mean"] is None


@pytest.mark.parametrize("edit", [{"policy": {"aggregate": [[1]]}}, {"optimizer": {"learning_rate": True}}])
def test_knobs_that_cannot_be_read_are_named(tmp_path: Path, edit: dict[str, Record]) -> None:
    simulation = {"problem": "quadratic", "compute": "exponential(1)"}
    run = simulate(tmp_path / "run", "bounded", {"max_staleness": 4}, simulation=simulation)
    path = run.path / "summary.json"
    summary = json.loads(path.read_text())
    for key, knobs in edit.items():
        summary[key] |= knobs
    path.write_text(json.dumps(summary))
    result = ps_lab("predict", str(run.path))
    assert result.code == ExitCode.USAGE and "cannot be read" in result.err
