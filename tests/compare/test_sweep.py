"""Sweeps: every combination, seeds, and taking one up again."""

import os
import sys
from pathlib import Path

import pytest

from pslab.compare.sweep import SweepError, cells, left_out_text, vary
from pswire.config.experiment import ExperimentError
from pswire.exits import ExitCode
from tests.replay.command import ps_lab

EXPERIMENT = """
[run]
name = "small"
seed = 4

[cluster]
workers = 3

[policy]
name = "bounded"

[simulation]
compute = "exponential(1)"
batches = 20
"""


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(EXPERIMENT)
    return path


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a.b=1,2", ["a.b=1", "a.b=2"]),
        ("a.b=sync, async", ["a.b=sync", "a.b=async"]),
        ("a.b=[1, 2],[3]", ["a.b=[1, 2]", "a.b=[3]"]),
        ("a.b={x = 1, y = 2},0.1", ["a.b={x = 1, y = 2}", "a.b=0.1"]),
        ("a.b=exponential(1)", ["a.b=exponential(1)"]),
        ('policy={name = "a"}, {name = "b", k = 2}', ['policy={name = "a"}', 'policy={name = "b", k = 2}']),
        ('a.b="gamma(2, 1)","constant(1)"', ['a.b="gamma(2, 1)"', 'a.b="constant(1)"']),
    ],
)
def test_values(text: str, values: list[str]) -> None:
    assert vary(text) == values


@pytest.mark.parametrize("text", ["a.b", "ab=1,2", "a={x = 1},2", "a.b=1,,2", "a.b=", ".b=1", "a.b=1,1"])
def test_values_that_are_none(text: str) -> None:
    with pytest.raises(SweepError):
        vary(text)


def test_every_combination_with_every_seed(experiment: Path) -> None:
    varied = ["policy.max_staleness=0,1", "cluster.workers=2,3"]
    grid = cells(experiment, ["optimizer.learning_rate=0.5"], varied, repeat=2)
    assert [cell.name for cell in grid] == [
        f"max_staleness={s},workers={w},seed={seed}" for s in (0, 1) for w in (2, 3) for seed in (4, 5)
    ]
    last = grid[-1].experiment
    assert (last.run.seed, last.cluster.workers, last.policy.knobs["max_staleness"]) == (5, 3, 1)
    assert last.optimizer.learning_rate == 0.5


def test_bad_values_are_found_before_anything_runs(experiment: Path) -> None:
    with pytest.raises(ExperimentError, match="workers"):
        cells(experiment, [], ["cluster.workers=2,0"], repeat=1)


def test_whole_policies_can_be_varied(experiment: Path) -> None:
    grid = cells(experiment, [], ['policy={name = "sync"},{name = "k-sync", aggregate = 3}'], repeat=1)
    assert [cell.name for cell in grid] == ["sync,seed=4", "k-sync,aggregate=3,seed=4"]
    assert [cell.experiment.policy.knobs for cell in grid] == [{}, {"aggregate": 3}]


@pytest.mark.parametrize(
    ("added", "vary", "knobs", "said"),
    [
        (
            "[policy]",
            "policy.name=bounded,sync,ssp",
            [{"max_staleness": 3}, {}, {}],
            "left out: policy.max_staleness (not a knob of sync, ssp)",
        ),
        (
            '[optimizer]\nname = "adam"',
            "optimizer.name=sgd,adam",
            [{}, {"beta_1": 0.8}],
            "left out: optimizer.beta_1 (not a knob of sgd)",
        ),
    ],
)
def test_a_varied_name_leaves_out_the_knobs_that_it_does_not_have(
    experiment: Path, added: str, vary: str, knobs: list[dict[str, object]], said: str
) -> None:
    section = vary.partition(".")[0]
    text = EXPERIMENT.replace('name = "bounded"', 'name = "bounded"\nmax_staleness = 3')
    if section == "optimizer":
        text += f"\n{added}\nbeta_1 = 0.8\n"
    experiment.write_text(text)
    grid = cells(experiment, [], [vary], repeat=1)
    assert [dict(getattr(cell.experiment, section).model_extra or {}) for cell in grid] == knobs
    assert left_out_text(grid) == said


def test_a_knob_that_an_override_gives_is_not_left_out(experiment: Path) -> None:
    for overrides, varied in (
        (["policy.max_staleness=3"], ["policy.name=bounded,sync"]),
        ([], ["policy.name=bounded,sync", "policy.max_staleness=3,4"]),
    ):
        with pytest.raises(ExperimentError, match="max_staleness"):
            cells(experiment, overrides, varied, repeat=1)


def test_names_are_fit_for_a_file_system(experiment: Path) -> None:
    (cell,) = cells(experiment, [], ["workers.0.delay=exponential(0.05)"], repeat=1)
    assert cell.name == "delay=exponential_0.05_,seed=4"


def sweep(experiment: Path, *options: object) -> tuple[int, list[str], str]:
    said = ps_lab(
        "sweep", experiment, "--engine", "simulated", "--out", experiment.parent / "out", *options, "--json"
    )
    lines = [line for line in said.lines if line["event"] == "run"] if said.code == 0 else []
    return said.code, [f"{line['name']} {line['kept']}" for line in lines], said.err


def test_a_sweep_can_be_taken_up_again(experiment: Path) -> None:
    options = ("--vary", "policy.max_staleness=0,2", "--repeat", 2)
    code, told, _ = sweep(experiment, *options)
    assert code == 0 and told == [f"max_staleness={s},seed={seed} False" for s in (0, 2) for seed in (4, 5)]
    out = experiment.parent / "out"
    # One folder was cut off half-way, another is gone.
    (out / "max_staleness=0,seed=5" / "summary.json").unlink()
    os.rename(out / "max_staleness=2,seed=4", out / "elsewhere")
    code, told, _ = sweep(experiment, *options)
    assert code == 0
    assert [line.rpartition(" ")[2] for line in told] == ["True", "False", "False", "True"]


def test_another_experiment_in_the_folder_is_refused(experiment: Path) -> None:
    assert sweep(experiment)[0] == 0
    code, _, err = sweep(experiment, "--set", "optimizer.learning_rate=0.2")
    assert code == ExitCode.USAGE and "finished run of another experiment" in err


def test_the_comparison_at_the_end(experiment: Path) -> None:
    said = ps_lab(
        *("sweep", experiment, "--engine", "simulated", "--out", experiment.parent / "out"),
        *("--vary", "policy.max_staleness=0,2", "--repeat", 3),
    )
    assert said.code == 0
    assert "6 of 6" in said.out and "bounded (max_staleness=2)" in said.out and "±" in said.out


def test_a_bad_policy_in_the_last_combination_is_found_before_the_first_one_runs(experiment: Path) -> None:
    for values in ('policy={name = "sync"},{name = "k-sync", aggregate = 9}', "policy.name=sync,asink"):
        code, _, err = sweep(experiment, "--vary", values)
        assert code == ExitCode.USAGE and ("aggregate must be" in err or 'did you mean "async"' in err)
        assert not (experiment.parent / "out").exists()


def test_runs_without_a_record_are_compared_and_kept(experiment: Path) -> None:
    options = ("--vary", "policy.max_staleness=0,2", "--set", "simulation.record=false")
    out = experiment.parent / "out"
    said = ps_lab("sweep", experiment, "--engine", "simulated", "--out", out, *options)
    assert said.code == 0 and "bounded (max_staleness=2)" in said.out
    code, told, _ = sweep(experiment, *options)
    assert code == 0 and [line.rpartition(" ")[2] for line in told] == ["True", "True"]


def test_unknown_policies_and_keys_are_refused(experiment: Path) -> None:
    code, _, err = sweep(experiment, "--vary", "policy.name=sync,asink")
    assert code == ExitCode.USAGE and "asink" in err
    code, _, err = sweep(experiment, "--vary", "cluster.worker=1,2")
    assert code == ExitCode.USAGE and "cluster.worker: unknown key" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--chart", "training_loss=a.gif"), "a.gif: expected a name that ends in .svg or .png"),
        (("--chart", "training_loss=folder.svg"), "folder.svg: is a folder"),
        (("--best",), "expected a goal"),
    ],
)
def test_what_cannot_be_shown_is_found_before_anything_runs(
    experiment: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(experiment.parent)
    Path("folder.svg").mkdir()
    said = ps_lab("sweep", experiment, "--engine", "simulated", "--out", "swept", *options)
    assert said.code == ExitCode.USAGE and message in said.err
    assert said.out == "" and not Path("swept").exists()


@pytest.mark.parametrize("package", ["matplotlib", "pandas"])
def test_charts_without_their_packages_are_refused_before_anything_runs(
    experiment: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    chart = ("--chart", f"training_loss={tmp_path / 'a.svg'}")
    said = ps_lab("sweep", experiment, "--engine", "simulated", "--out", tmp_path / "swept", *chart)
    assert said.code == ExitCode.USAGE and "scripts/install examples" in said.err
    assert not (tmp_path / "swept").exists()
