"""Successive halving: rungs, ranking, and a sweep that runs fewer and fewer settings for longer and longer."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from pslab.compare.groups import Goals
from pslab.compare.halving import RungBudget, halving, result_of, score
from pslab.compare.sweep import SweepError
from pswire.exits import ExitCode
from tests.replay.command import ps_lab

EXPERIMENT = """
[run]
name = "small"
engine = "simulated"

[cluster]
workers = 3

[policy]
name = "bounded"

[optimizer]
name = "sgd"
learning_rate = 0.1

[job]
epochs = 4

[simulation]
problem = "mlp"
compute = "exponential(1)"
"""


GOALS = Goals()


def experiment(epochs=8, versions=0):
    return SimpleNamespace(
        job=SimpleNamespace(epochs=epochs), run=SimpleNamespace(versions=versions, name="x")
    )


def run(accuracy=math.nan, loss=math.nan, seconds=math.nan, success=True):
    values = {
        "accuracy": accuracy,
        "held_out_loss": loss,
        "training_loss": math.nan,
        "seconds_to_accuracy": seconds,
        "seconds_to_training_loss": seconds,
    }
    return SimpleNamespace(run=SimpleNamespace(summary=SimpleNamespace(success=success)), values=values)


@pytest.mark.parametrize(
    ("start", "end", "rungs"), [(1, 8, [1, 2, 4, 8]), (3, 8, [3, 6, 8]), (7, 8, [7, 8]), (1, 2, [1, 2])]
)
def test_a_budget_doubles_up_to_its_end(start, end, rungs):
    settings = RungBudget.parse(f"job.epochs={start}", experiment(end)).settings()
    assert settings == [f"job.epochs={value}" for value in rungs]


@pytest.mark.parametrize(
    "text",
    ["job.epochs", "job.epochs=0", "job.epochs=x", "job.epochs=8", "job.none=1", "none.x=1", "run.name=1"],
)
def test_a_budget_that_cannot_grow_is_refused(text):
    with pytest.raises(SweepError):
        RungBudget.parse(text, experiment(8))


def test_the_better_half_is_rounded_up_and_ties_keep_their_order():
    cost = dict(zip("abcde", (0.5, 0.1, 0.5, 0.3, 0.9), strict=True))
    left = [list(left) for _, left in halving(cost, range(3), cost.__getitem__)]
    assert left == [list("abcde"), list("bda"), list("bd")]


def test_the_least_number_stays():
    cost = dict(zip("abcde", (5, 1, 4, 2, 3), strict=True))
    assert [left for _, left in halving(cost, range(3), cost.__getitem__, 2)] == [
        list("abcde"),
        list("bde"),
        list("bd"),
    ]


def test_who_reaches_the_goal_sooner_is_better():
    fast, slow, never = [run(seconds=1.0)], [run(seconds=2.0)], [run(accuracy=1.0)]
    goals = Goals(accuracy=0.9)
    assert ranked(fast, goals) < ranked(slow, goals) < ranked(never, goals)


def ranked(runs, goals=GOALS):
    return score([result_of(each, goals) for each in runs])


def test_one_failed_seed_outweighs_a_better_mean():
    sound, broken = [run(accuracy=0.5), run(accuracy=0.5)], [run(accuracy=0.9), run(success=False)]
    assert ranked(sound) < ranked(broken) < ranked([])


def test_without_accuracy_the_loss_decides():
    assert ranked([run(loss=0.1)]) < ranked([run(loss=0.2)])


def test_a_sweep_halves_its_settings(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(EXPERIMENT)
    arguments = ("--vary", "optimizer.learning_rate=0.0001,0.1,0.2,0.0002", "--halve", "job.epochs=1")
    done = ps_lab("sweep", str(path), *arguments, "--out", str(tmp_path / "out"), "--json")
    assert done.code == ExitCode.OK, done.err
    events = [json.loads(line) for line in done.out.splitlines()]
    rungs = [event for event in events if event.get("event") == "rung"]
    assert [(rung["number"], rung["of"], len(rung["left"])) for rung in rungs] == [(1, 3, 2), (2, 3, 1)]
    assert all("=0.1" in name or "=0.2" in name for name in rungs[0]["left"])
    runs = [event["name"] for event in events if event.get("event") == "run"]
    assert [sum(f"epochs={epochs}," in name for name in runs) for epochs in (1, 2, 4)] == [4, 2, 1]
