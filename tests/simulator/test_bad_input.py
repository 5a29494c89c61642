"""An experiment that cannot be simulated: one clear message, nothing written."""

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from pslab.simulator import SimulationError, build
from psserver.decisions.entries import Stop
from psserver.policies import PolicyError
from tests.simulator.lab import experiment, simulate

RunLab = Callable[..., CompletedProcess[str]]


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({}, "the run would never end: give run.versions, simulation.batches (per worker)"),
        (
            {"simulation": {"seconds": 5.0, "compute": "constant(0)"}},
            "time would stand still: no worker's step takes any",
        ),
        (
            {"run": {"versions": 1}, "faults": {"crashes": [{"worker": 9, "at": 1.0}]}},
            "faults.crashes.0.worker: there is no worker 9; expected one below cluster.workers, which is 4",
        ),
        (
            {"run": {"versions": 1}, "simulation": {"factors": {"4": 2.0}}},
            "simulation.factors.4: there is no worker 4",
        ),
        (
            {"simulation": {"problem": "quadratic", "options": {"noize": 1.0}}},
            "problem quadratic has no option 'noize'; did you mean \"noise\"?",
        ),
        (
            {"simulation": {"problem": "mlp", "options": {"hidden": 0}}},
            "simulation.options: hidden must be a whole number from 1 to 1000000, got 0",
        ),
        (
            {"simulation": {"problem": "mlp", "options": {"hidden": "many"}}},
            "simulation.options: hidden must be a whole number from 1 to 1000000, got 'many'",
        ),
        (
            {"simulation": {"problem": "quadratic", "options": {"centres": []}}},
            "centres must be a list of numbers, at least one, got []",
        ),
        (
            {"run": {"versions": 1}, "simulation": {"compute": "trace(/nowhere/steps.csv)"}},
            "simulation.compute: trace(/nowhere/steps.csv): cannot be read",
        ),
        (
            {"run": {"versions": 1}, "delays": {2: "trace(/nowhere/steps.csv)"}},
            "workers.2.delay: trace(/nowhere/steps.csv): cannot be read",
        ),
        (
            {"simulation": {"problem": "quadratic", "options": {"condition": float("inf")}}},
            "simulation.options: condition must be a number from 1 to 1000000000000, got inf",
        ),
        (
            {"run": {"versions": 1}, "simulation": {"options": {"dimensions": 1}}},
            "simulation.options are those of a problem, but none is named",
        ),
        (
            {"simulation": {"problem": "quadratic", "evaluate": 1, "until_accuracy": 0.5}},
            "simulation.until_accuracy is given, but problem quadratic has no accuracy",
        ),
        (
            {
                "run": {"versions": 1},
                "faults": {"joins": [{"worker": 4, "at": 1.0}, {"worker": 4, "at": 2.0}]},
            },
            "faults.joins.1.worker: worker 4 joins at 1 s already; expected each worker once",
        ),
        ({"simulation": {"problem": "job"}}, 'simulation.problem is "job", but there is no [job]'),
    ],
)
def test_what_cannot_be_simulated(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(SimulationError) as error:
        build(experiment(**sections))
    assert message in str(error.value)


@pytest.mark.parametrize(
    "compute", ["exponential(0)", "0 * pareto(1, 1)", "constant(1e-320)", "trace({zeros})"]
)
def test_steps_that_take_no_time_would_never_come_to_an_end(compute: str, tmp_path: Path) -> None:
    zeros = tmp_path / "zeros.txt"
    zeros.write_text("0\n0\n")
    time: dict[str, Any] = {"simulation": {"seconds": 5.0, "compute": compute.format(zeros=zeros)}}
    with pytest.raises(SimulationError, match="time would stand still"):
        build(experiment(**time))
    # It passes on the way, or with the other worker.
    run = simulate(experiment(**time, links={"latency": 0.1}))
    assert run.versions > 0 and [e.reason for e in run.entries if isinstance(e, Stop)] == ["5 s are over"]
    build(experiment(**time, delays={1: "constant(1)"}))


def test_a_knob_out_of_range() -> None:
    with pytest.raises(
        PolicyError, match=r"aggregate must be a whole number >= 1 and <= workers \(4\), got 9"
    ):
        build(experiment("bounded", run={"versions": 1}, policy_knobs={"aggregate": 9}))


FILE = """
[run]
name = "small"
versions = 50
[cluster]
workers = 3
[simulation]
compute = "exponential(0.01)"
"""


def test_the_command(tmp_path: Path, run_lab: RunLab) -> None:
    file = tmp_path / "small.toml"
    file.write_text(FILE)
    done = run_lab("run", str(file), "--engine", "simulated", "--out", str(tmp_path / "run"))
    assert done.returncode == 0 and "50 versions in " in done.stdout, done.stderr
    assert " virtual s, " in done.stdout
    again = run_lab("run", str(file), "--engine", "simulated", "--out", str(tmp_path / "run"))
    assert again.returncode == 2 and "is not empty" in again.stderr


def test_the_command_refuses_before_it_writes(tmp_path: Path, run_lab: RunLab) -> None:
    file, out = tmp_path / "small.toml", tmp_path / "run"
    file.write_text(FILE)
    bad = ("--set", "simulation.factors.7=2.0")
    done = run_lab("run", str(file), "--engine", "simulated", "--out", str(out), *bad)
    assert done.returncode == 2 and "there is no worker 7" in done.stderr and not out.exists()


def test_a_run_that_diverges_says_so(tmp_path: Path, run_lab: RunLab) -> None:
    file, out = tmp_path / "small.toml", tmp_path / "run"
    file.write_text(FILE)
    bad = ("--set", "optimizer.learning_rate=1e20", "--set", "simulation.problem=quadratic")
    done = run_lab("run", str(file), "--engine", "simulated", "--out", str(out), *bad)
    assert done.returncode == 8, done.stderr
    assert "every worker is gone; w" in done.stdout and "in a row gave no finite gradient" in done.stdout


def test_a_run_without_a_record_has_a_summary_and_no_log(tmp_path: Path, run_lab: RunLab) -> None:
    file, out = tmp_path / "small.toml", tmp_path / "run"
    file.write_text(FILE + "record = false\n")
    done = run_lab("run", str(file), "--engine", "simulated", "--out", str(out))
    assert done.returncode == 0 and "50 versions" in done.stdout, done.stderr
    assert not (out / "decisions.jsonl").exists() and (out / "summary.json").exists()
    checked = run_lab("check", str(out))
    assert checked.returncode == 2 and "simulation.record = false" in checked.stderr
