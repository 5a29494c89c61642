"""`ps-lab advise`: ranking of plays, refusals, and a whole advice that is resumed."""

import json
import math
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from pslab.advise.judge import Play, judge, standing
from pslab.advise.shelf import Candidate, candidates, settings
from pslab.advise.source import (
    DRIFT,
    LEAST_STEPS,
    MOST_CRASHES,
    AdviceError,
    Outages,
    check_times,
    load_source,
    outages_of,
    pace_factors,
)
from pslab.experiment import Experiment
from pslab.predict.steps import StepTimes
from pslab.runs.folder import Run
from pslab.sections import Crash
from psserver.policies import build as build_policy
from pswire.decisions import entries
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


def plays(*seconds: float) -> dict[int, Play]:
    return {seed: Play(each, -0.9, 0.1, 0.5) for seed, each in enumerate(seconds, start=1)}


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(EXPERIMENT)
    return path


# Judging


def test_who_is_surely_faster_is_first_and_alone():
    found = judge({SYNC: plays(4, 5, 6), ASYNC: plays(1, 1.1, 1.2), BOUNDED: plays(2, 2.2, 2.4)})
    assert [each.candidate for each in found] == [ASYNC, BOUNDED, SYNC]
    assert [each.tied for each in found] == [True, False, False]
    assert found[0].best == 1.0
    assert found[0].low <= found[0].ratio <= found[0].high < 0.3
    assert found[2].ratio == found[2].low == found[2].high == 1.0


def test_of_those_that_cannot_be_told_apart_the_simplest_is_first():
    found = judge({SYNC: plays(9, 9, 9), ASYNC: plays(1.0, 1.2, 1.1), BOUNDED: plays(1.1, 1.0, 1.1)})
    assert [each.candidate for each in found[:2]] == [ASYNC, BOUNDED]
    assert all(each.tied for each in found[:2])
    assert sum(each.best for each in found) == pytest.approx(1.0)


def test_who_is_slower_than_the_error_of_a_pace_explains_is_no_tie():
    """`sync` is simpler, and chance explains the difference; it is still 8 % behind."""
    found = judge({SYNC: plays(1.4, 0.85, 0.99), ASYNC: plays(1.0, 1.01, 0.99)})
    assert [each.candidate for each in found] == [ASYNC, SYNC]
    assert [each.tied for each in found] == [True, False]


def test_four_of_five_real_measurements_lie_in_the_interval():
    """Plays and real runs draw from one distribution, and the simulated pace is off by 5 % usually."""
    random = np.random.default_rng(7)
    inside = 0
    for _ in range(200):
        sync, other = (scale * random.lognormal(0, 0.2, (2, 5)) for scale in (2.0, 1.0))
        (own,) = (
            each
            for each in judge({SYNC: plays(*sync[0]), ASYNC: plays(*other[0])})
            if each.candidate == ASYNC
        )
        measured = other[1].mean() / sync[1].mean() * math.exp(0.05 * random.standard_normal())
        inside += own.low <= measured <= own.high
    assert 0.75 <= inside / 200 <= 0.9


def test_one_play_has_no_interval():
    (own,) = (each for each in judge({SYNC: plays(2), ASYNC: plays(1)}) if each.candidate == ASYNC)
    assert own.ratio == 0.5 and math.isnan(own.low) and math.isnan(own.high)


def test_those_that_are_first_together_share_the_probability():
    found = judge({SYNC: plays(1, 2), ASYNC: plays(1, 2)})
    assert [each.best for each in found] == [0.5, 0.5]


def test_who_misses_the_goal_under_a_seed_is_behind_those_that_never_do():
    found = judge({SYNC: plays(5, 5, 5), ASYNC: plays(1, math.inf, 1)})
    assert [each.candidate for each in found] == [SYNC, ASYNC]
    assert found[1].reached == 2
    assert math.isinf(found[1].ratio)


def test_nothing_is_said_where_nobody_reached_the_goal():
    assert judge({SYNC: plays(math.inf), ASYNC: plays(math.inf)}) == []


def test_only_those_with_all_seeds_are_judged():
    found = judge({SYNC: plays(3, 3), ASYNC: plays(1), BOUNDED: plays(2, 2)})
    assert [each.candidate for each in found] == [BOUNDED, SYNC]


def test_the_same_plays_give_the_same_advice():
    given = {SYNC: plays(4, 5, 6), ASYNC: plays(3, 6, 2)}
    assert judge(given) == judge(given)


def test_standing_prefers_the_goal_then_time_then_the_metric():
    near, far = ({1: Play(math.inf, -reached, 0, 1)} for reached in (0.9, 0.1))
    found = {SYNC: far, ASYNC: near, BOUNDED: plays(9)}
    assert sorted(found, key=lambda each: standing(each, found[each].values())) == [BOUNDED, ASYNC, SYNC]


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
    assert next(each for each in tried if isinstance(each, Candidate)).baseline


# What it starts from


def test_a_run_that_is_too_short_gives_no_advice():
    with pytest.raises(AdviceError):
        check_times(StepTimes({0: (0.1,) * (LEAST_STEPS - 1)}))
    check_times(StepTimes({0: (0.1,) * LEAST_STEPS}))


def test_a_pace_that_drifts_gives_no_advice():
    half = (0.1,) * LEAST_STEPS
    with pytest.raises(AdviceError):
        check_times(StepTimes({0: half + tuple(each * (1 + 1.1 * DRIFT) for each in half)}))
    check_times(StepTimes({0: half + tuple(each * (1 + 0.9 * DRIFT) for each in half)}))


def test_a_pace_that_drifts_is_taken_when_asked_for():
    half = (0.1,) * LEAST_STEPS
    drifted = StepTimes({0: half + tuple(3 * each for each in half)})
    with pytest.raises(AdviceError, match="--any-pace"):
        check_times(drifted)
    check_times(drifted, any_pace=True)


def test_a_policy_of_your_own_is_named_as_not_tried():
    experiment = Experiment.model_validate({"run": {"name": "x"}, "policy": {"name": "mine:Policy"}})
    assert [
        each for each in candidates(experiment) if isinstance(each, str) and each.startswith("mine:Policy: ")
    ]


def test_chance_in_a_heavy_tail_is_neither_a_drift_nor_a_straggler():
    """One step in a hundred takes a hundred times as long; where it falls makes halves and workers differ."""
    rare = tuple(1.0 if place in (120, 180) else 0.01 for place in range(LEAST_STEPS))
    often = tuple(1.0 if place % 40 == 0 else 0.01 for place in range(LEAST_STEPS))
    times = StepTimes({0: rare, 1: often, 2: often, 3: rare})
    check_times(times)
    experiment = Experiment.model_validate({"run": {"name": "x"}, "cluster": {"workers": 4}})
    assert pace_factors(experiment, times) == {}
    slow = StepTimes({0: (0.1, 0.11) * 200, 1: (0.3, 0.33) * 200, 2: (0.2, 0.22) * 200})
    assert pace_factors(experiment, slow) == pytest.approx({0: 0.5, 1: 1.5})


def test_workers_that_came_back_are_lost_again_in_every_play(tmp_path):
    facts = [
        entries.Join("w0", 0, 0),
        entries.Join("w1", 0, 1),
        entries.Grant("w0", 1, 0),
        entries.Lost("w1"),
        entries.Join("w1", 1, 1),
        entries.Lost("w0"),
        entries.Back("w0"),
        entries.Lost("w0"),
        entries.Stop("enough", 3, True),
        entries.Join("w0", 1, 0),
    ]
    moments = [0.0, 0.1, 1.0, 3.0, 3.5, 4.0, 4.1, 9.0, 11.0, 12.0]
    lines = [
        {"i": i, "t": t, **fact.to_json()} for i, (fact, t) in enumerate(zip(facts, moments, strict=True))
    ]
    (tmp_path / "decisions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = outages_of(Run(tmp_path))
    # A connection that came back, and a worker that did not before the end, are no outages.
    assert found == Outages((Crash(worker=1, at=2.0, restart=0.5),), 10.0)
    crashes = found.faults(3).crashes
    assert len(crashes) == MOST_CRASHES and crashes == found.faults(3).crashes
    assert {round(later.at - crash.at, 5) for crash, later in pairwise(crashes)} == {10.0}
    assert 0 <= crashes[0].at < 10 and crashes[0].at != found.faults(4).crashes[0].at
    assert Outages().faults(1).crashes == []


def test_another_cluster_stands_in_for_the_source_s_own(experiment, tmp_path):
    other = tmp_path / "other.toml"
    other.write_text('[run]\nname = "o"\n[cluster]\nworkers = 6\n[links]\nlatency = 0.5\n')
    found = load_source(experiment, tmp_path, other).experiment
    assert (found.cluster.workers, found.links.latency, found.simulation.factors) == (6, 0.5, {})
    assert found.job == Experiment.load(experiment).job


def test_a_limit_in_versions_does_not_end_plays(experiment, tmp_path):
    """It would end those early that make a version of each gradient."""
    experiment.write_text(EXPERIMENT.replace('name = "small"', 'name = "small"\nversions = 7'))
    assert Experiment.load(experiment).run.versions == 7
    assert load_source(experiment, tmp_path, None).experiment.run.versions == 0


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


def test_only_a_run_has_a_pace_that_drifts(experiment, tmp_path):
    said = ps_lab("advise", experiment, "--goal", "training_loss=1", "--any-pace", "--out", tmp_path / "o")
    assert said.code == ExitCode.USAGE and "--any-pace: expected a RUN" in said.err


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
    *played, advice = first.lines
    assert advice["whole"]
    labels = {each["policy"]["name"] for each in advice["choices"]}
    assert "sync" in labels and len(labels) > 2
    chosen = Experiment.load(out / "first.toml")
    assert chosen.policy.name == advice["choices"][0]["policy"]["name"]
    assert chosen.run.name == "small-advised"
    assert chosen.optimizer.learning_rate == advice["choices"][0]["learning_rate"]
    assert sorted(path.name for path in out.iterdir()) == ["first.toml", "plays.jsonl"]
    # The straggler makes a barrier the slowest: async needs less time.
    assert advice["choices"][0]["policy"]["name"] != "sync"
    assert next(each for each in played if each["choice"].startswith("sync"))["seconds"] is not None

    again = ps_lab(*asked)
    assert again.lines == [advice]
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
