"""`ps-lab advise`: ranking of plays, refusals, and a whole advice that is resumed."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from pslab.advise.shelf import Candidate, candidates, first_choice, settings
from pslab.advise.source import LEAST_STEPS, AdviceError, check_times, load_source, pace_factors
from pslab.compare.halving import RungResult
from pslab.experiment import Experiment
from pslab.predict.steps import StepTimes
from pslab.runs.folder import Run
from psserver.policies import build as build_policy
from pswire.exits import ExitCode
from tests.lab.logs import async_log, write_run
from tests.replay.command import ps_lab

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SYNC, ASYNC, BOUNDED = (
    Candidate(name, 0.1, rank, knobs)
    for rank, (name, knobs) in enumerate((("sync", {}), ("async", {}), ("bounded", {"max_staleness": 4})))
)
EXPERIMENT = """
[run]
name = "small"
engine = "simulated"
checkpoint_every = "5 versions"

[cluster]
workers = 3

[optimizer]
name = "sgd"
learning_rate = 0.1

[job]
epochs = 8

[simulation]
problem = "mlp"
compute = "exponential(0.1)"
factors = {2 = 5.0}
"""


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(EXPERIMENT)
    return path


# Choosing


def results(*seconds: float) -> list[RungResult]:
    return [RungResult(each, -0.9) for each in seconds]


def test_who_is_surely_faster_is_first_and_alone():
    given = {SYNC: results(4, 5, 6), ASYNC: results(1, 1.1, 1.2), BOUNDED: results(2, 2.2, 2.4)}
    assert first_choice(given) == [ASYNC]


def test_of_those_that_are_as_fast_the_simplest_is_first():
    given = {SYNC: results(9, 9, 9), BOUNDED: results(1.0, 1.0, 1.0), ASYNC: results(1.1, 1.0, 1.0)}
    assert first_choice(given) == [ASYNC, BOUNDED]


def test_who_is_slower_than_the_error_of_a_pace_explains_is_not_as_fast():
    assert first_choice({SYNC: results(1.4, 0.85, 0.99), ASYNC: results(1.0, 1.01, 0.99)}) == [ASYNC]


def test_who_misses_the_goal_under_a_seed_is_behind_those_that_never_do():
    assert first_choice({SYNC: results(5, 5, 5), ASYNC: results(1, math.inf, 1)}) == [SYNC]


def test_nothing_is_said_where_nobody_reached_the_goal():
    assert first_choice({SYNC: results(math.inf), ASYNC: results(math.inf)}) == []


# What is tried


@pytest.mark.parametrize("workers", [1, 2, 3, 8, 50])
def test_every_setting_is_one_that_servers_take(workers):
    found = settings(workers)
    assert len({json.dumps(each) for each in found}) == len(found)
    for name, knobs in found:
        build_policy(name, knobs, workers, 1)


def test_what_an_optimizer_cannot_serve_is_named():
    experiment = Experiment.model_validate(
        {"run": {"name": "x"}, "cluster": {"workers": 2}, "optimizer": {"name": "sgd", "learning_rate": 0.1}}
    )
    tried = list(candidates(experiment, (0.5, 1.0)))
    rates = {each.rate for each in tried if isinstance(each, Candidate)}
    assert rates == {0.05, 0.1}


# What it starts from


def test_a_run_that_is_too_short_gives_no_advice():
    with pytest.raises(AdviceError):
        check_times(StepTimes({0: (0.1,) * (LEAST_STEPS - 1)}))
    check_times(StepTimes({0: (0.1,) * LEAST_STEPS}))


def test_a_policy_of_your_own_is_named_as_not_tried():
    experiment = Experiment.model_validate({"run": {"name": "x"}, "policy": {"name": "mine:Policy"}})
    assert [
        each for each in candidates(experiment) if isinstance(each, str) and each.startswith("mine:Policy: ")
    ]


def test_chance_in_a_heavy_tail_is_no_straggler():
    """One step in a hundred takes a hundred times as long; where it falls makes halves and workers differ."""
    rare = tuple(1.0 if place in (120, 180) else 0.01 for place in range(LEAST_STEPS))
    often = tuple(1.0 if place % 40 == 0 else 0.01 for place in range(LEAST_STEPS))
    times = StepTimes({0: rare, 1: often, 2: often, 3: rare})
    check_times(times)
    experiment = Experiment.model_validate({"run": {"name": "x"}, "cluster": {"workers": 4}})
    assert pace_factors(experiment, times) == {}
    slow = StepTimes({0: (0.1, 0.11) * 200, 1: (0.3, 0.33) * 200, 2: (0.2, 0.22) * 200})
    assert pace_factors(experiment, slow) == pytest.approx({0: 0.5, 1: 1.5})


def test_a_limit_in_versions_does_not_end_plays(experiment, tmp_path):
    """It would end those early that make a version of each gradient."""
    experiment.write_text(EXPERIMENT.replace('name = "small"', 'name = "small"\nversions = 7'))
    assert Experiment.load(experiment).run.versions == 7
    assert load_source(experiment, tmp_path).run.versions == 0


@pytest.mark.parametrize(
    "change",
    [
        ('problem = "mlp"', 'problem = "none"'),
        ("learning_rate = 0.1", 'learning_rate = {schedule = "cosine", initial = 0.1, steps = 10}'),
    ],
)
def test_what_cannot_be_advised_on_is_refused(experiment, tmp_path, change):
    experiment.write_text(EXPERIMENT.replace(*change))
    assert (
        ps_lab("advise", experiment, "--goal", "training_loss=1", "--out", tmp_path / "o").code
        == ExitCode.USAGE
    )


@pytest.mark.parametrize("goal", ["accuracy", "f1=2", "training_loss=x", "accuracy=nan"])
def test_a_goal_is_a_number_of_a_metric(experiment, tmp_path, goal):
    assert ps_lab("advise", experiment, "--goal", goal, "--out", tmp_path / "o").code == ExitCode.USAGE


def test_a_short_run_is_refused_by_the_command(tmp_path):
    run = write_run(tmp_path / "run", async_log())
    assert (
        ps_lab("advise", Run(run).path, "--goal", "training_loss=1", "--out", tmp_path / "o").code
        == ExitCode.USAGE
    )


def test_a_folder_that_cannot_be_made_is_named(experiment, tmp_path):
    (tmp_path / "file").touch()
    said = ps_lab("advise", experiment, "--goal", "training_loss=1", "--out", tmp_path / "file" / "o")
    assert said.code == ExitCode.USAGE and f"{tmp_path / 'file' / 'o'}: cannot be written" in said.err


@pytest.mark.parametrize("source", ["nothing.toml", "small.toml"])
def test_of_what_is_refused_no_folder_is_left(experiment, tmp_path, source):
    (tmp_path / "small.toml").write_text(EXPERIMENT.replace("mlp", "none"))
    said = ps_lab("advise", tmp_path / source, "--goal", "training_loss=1", "--out", tmp_path / "o")
    assert said.code == ExitCode.USAGE and not (tmp_path / "o").exists()


# A whole advice


def test_an_advice_is_written_and_its_plays_are_kept(experiment, tmp_path):
    out = tmp_path / "advice"
    asked = (
        "advise",
        experiment,
        "--goal",
        "accuracy=0.3",
        "--seeds",
        "2",
        "--rates",
        "1",
        "--out",
        out,
        "--json",
    )
    first = ps_lab(*asked)
    assert first.code == ExitCode.OK, first.err
    *played, compared, advice = first.lines
    assert any(each["name"].startswith("policy=sync") for each in played)
    assert len(compared["groups"]) >= 4 and all(len(each["runs"]) == 2 for each in compared["groups"])
    chosen = Experiment.load(out / "first.toml")
    assert chosen.policy.name == advice["policy"]["name"]
    assert chosen.run.name == "small-advised"
    # What only a play needs is not in it.
    assert chosen.run.checkpoint_every == "5 versions"
    assert chosen.optimizer.learning_rate == advice["learning_rate"]
    # The straggler makes a barrier the slowest: others need less time.
    assert advice["policy"] != {"name": "sync"}

    again = ps_lab(*asked)
    assert again.lines[-2:] == [compared, advice] and all(each["kept"] for each in again.lines[:-2])
    other = ps_lab(*asked[:3], "accuracy=0.4", *asked[4:])
    assert other.code == ExitCode.USAGE


def test_a_goal_that_nobody_reaches_gives_no_advice(experiment, tmp_path):
    experiment.write_text(EXPERIMENT.replace("epochs = 8", "epochs = 1"))
    said = ps_lab(
        "advise",
        experiment,
        "--goal",
        "accuracy=0.999",
        "--seeds",
        "2",
        "--rates",
        "1",
        "--out",
        tmp_path / "o",
    )
    assert said.code == ExitCode.USAGE
    assert not (tmp_path / "o" / "first.toml").exists()


# In a process of its own: a simulated job makes TensorFlow deterministic for as long as its process lives.
SHARED = """
import sys
from pathlib import Path
from pslab.advise.shelf import Candidate
from pslab.launch.simulated import SharedTrainers, run_simulated
from pslab.experiment import Experiment

out = Path(sys.argv[2])
base = Experiment.load(Path(sys.argv[1]), ["job.epochs=1", "run.engine=simulated", "cluster.workers=2"])
shared = SharedTrainers()
first, second = (Candidate(name, 0.003, 0).experiment(base) for name in ("async", "sync"))
run_simulated(first, out=out / "first", quiet=True, trainers=shared)
run_simulated(second, out=out / "shared", quiet=True, trainers=shared)
run_simulated(second, out=out / "own", quiet=True)
"""


@pytest.mark.tensorflow
@pytest.mark.cluster
def test_shared_trainers_compute_what_new_ones_do(tmp_path):
    """Runs that use the same trainers in turn end with the weights of runs with trainers of their own."""
    script = tmp_path / "shared.py"
    script.write_text(SHARED)
    given = [str(EXAMPLES / "digits-async.toml"), str(tmp_path)]
    subprocess.run([sys.executable, str(script), *given], cwd=EXAMPLES.parent, timeout=240, check=True)
    own, common = (Run(tmp_path / kind).summary.weights_sha256 for kind in ("own", "shared"))
    assert own == common is not None
