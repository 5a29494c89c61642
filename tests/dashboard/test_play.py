"""The playground plays what `ps-lab run --engine simulated` plays."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pslab.dashboard.playground.play import Budget, play
from pslab.dashboard.playground.settings import (
    Play,
    PlaygroundError,
    choices,
    experiment_of,
    lessons,
    read_play,
)
from pslab.experiment import Experiment
from pslab.launch.simulated import run_simulated
from pslab.runs.folder import Run
from psserver import policies
from tests.comparing import same
from tests.dashboard.test_recording import recorded
from tests.lessons.lesson import DAILY
from tests.patience import at_most

# What the page has; of seconds as much as this machine takes.
BUDGET = Budget(seconds=at_most(Budget().seconds))
SETTINGS: Mapping[str, Any] = {
    "cluster.workers": 4,
    "policy.name": "sync",
    "optimizer.name": "momentum",
    "optimizer.learning_rate": 0.1,
    "optimizer.momentum": 0.5,
    "simulation.problem": "quadratic",
    "simulation.options.noise": 0.1,
    "simulation.compute": "exponential(0.5)",
    "simulation.factors.3": 3.0,
    "simulation.seconds": 20.0,
    "links.latency": 0.02,
    "faults.crashes": [{"worker": 1, "at": 4.0, "restart": 3.0}],
    "run.seed": 5,
}


def told(settings: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(play(Play(settings), BUDGET))
    return found


@cache
def unchanged() -> dict[str, Any]:
    """Look at it only."""
    return told(SETTINGS)


def run_of(text: str, folder: Path) -> Run:
    file = folder / "play.toml"
    file.write_text(text, encoding="utf-8")
    run_simulated(Experiment.load(file), out=folder / "run", quiet=True)
    return Run(folder / "run")


def test_the_experiment_file_plays_the_same(tmp_path: Path) -> None:
    """As `ps-lab run` accepts it; the same log, entry for entry."""
    found = unchanged()
    run = run_of(found["experiment"], tmp_path)
    again = recorded(run, run.metrics())
    for name in ("workers", "stretches", "tickets", "grants", "fates", "updates", "marks", "log", "seconds"):
        assert same(json.loads(json.dumps(again[name])), found[name]), name
    assert found["ended"]["success"] and found["updates"]


# Visitors


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("job.module", "os:system", "runs no foreign code"),
        ("policy.name", "os:system", "foreign code"),
        ("simulation.compute", "trace(/etc/passwd)", "reads no files"),
        ("workers.1.delay", "trace(/etc/passwd)", "reads no files"),
        ("simulation.problem", "job", "expected none, quadratic"),
        ("cluster.workers", 65, "at most 64"),
        ("simulation.options.dimensions", 10**9, "at most 1000"),
        ("cluster.workers", "four", "cluster.workers"),
        ("nonsense", 1, "expected a key such as"),
        ("policy..name", 1, "expected a key such as"),
        ("run.a.b.c.d", 1, "expected a key such as"),
        ("policy.name.x", 1, "is a value, not a table"),
        ("cluster.wrokers", 1, "did you mean"),
    ],
)
def test_settings_that_go_too_far_are_refused(key: str, value: object, sentence: str) -> None:
    with pytest.raises(PlaygroundError, match=sentence):
        experiment_of({**SETTINGS, key: value})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"settings": 1}',
        "x" * 9000,
        "[" * 5000,
    ],
)
def test_what_is_no_play_is_refused(text: str) -> None:
    with pytest.raises(PlaygroundError):
        read_play(text)


def test_a_play_has_a_budget() -> None:
    long = {**SETTINGS, "simulation.seconds": 1e6, "policy.name": "async", "faults.crashes": []}
    long["simulation.options.batches_per_epoch"] = 100_000
    found = json.loads(play(Play(long), Budget(entries=500, seconds=60.0)))
    assert "500 log entries" in found["limited"] and 500 <= len(found["log"]) < 600
    found = json.loads(play(Play(long), Budget(entries=10**9, seconds=0.2)))
    assert "0.2 s of processor time" in found["limited"]


def test_time_only_has_an_end() -> None:
    found = told(
        {
            "cluster.workers": 2,
            "policy.name": "async",
            "simulation.compute": "constant(1)",
            "simulation.problem": "none",
        }
    )
    assert found["seconds"] == 60.0 and found["updates"][-1][5] is None


# What there is to choose


def test_choices_are_the_tables_of_the_code() -> None:
    found = choices()
    assert [policy["name"] for policy in found["policies"]] == list(policies.names())
    slack = next(policy for policy in found["policies"] if policy["name"] == "ssp")["knobs"]
    assert [knob["name"] for knob in slack][:1] == ["slack"] and slack[0]["at_least"] == 0
    json.dumps(found, allow_nan=False)


# Of a lesson's settings these differ: what is played is short.
SHORTER = {"run.versions", "simulation.seconds"}
VARIED = {
    "4-divergence": {"optimizer.learning_rate"},
    # Where the file's run is at the optimum at once, and its messages take no time.
    "10-advisor": {"simulation.evaluate"},
    "8-local-steps": {"simulation.evaluate", "simulation.options.start", "links.latency"},
}
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", lessons())
def test_a_lesson_has_the_settings_of_its_file(name: str) -> None:
    import tomllib

    lesson = lessons()[name]
    document = tomllib.loads((ROOT / "docs" / "lessons" / name / lesson["file"]).read_text(encoding="utf-8"))
    document.pop("job", None)
    theirs, ours = flat(document), dict(lesson["settings"])
    differ = {key for key in theirs.keys() | ours.keys() if theirs.get(key) != ours.get(key)}
    assert differ <= SHORTER | VARIED.get(name, set())


def resolved(lesson: Mapping[str, Any]) -> dict[str, Any]:
    """As play/page.js does: another policy has its own knobs."""
    base, other = dict(lesson["settings"]), lesson["other"]
    if other.get("policy.name", base["policy.name"]) != base["policy.name"]:
        base = {key: value for key, value in base.items() if not key.startswith("policy.")}
    return {**base, **other}


# As in tests/lessons: three for every change, the others every night.
LESSONS = [
    name if name.startswith(DAILY) else pytest.param(name, marks=pytest.mark.nightly) for name in lessons()
]


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_plays_to_its_end(name: str) -> None:
    lesson = lessons()[name]
    if lesson["settings"].get("simulation.problem") in ("mlp", "logistic"):
        pytest.importorskip("sklearn")
    for settings in (lesson["settings"], resolved(lesson)):
        found = told(settings)
        assert found["ended"]["success"] and not found["limited"], found["ended"]["reason"]


@pytest.mark.parametrize("name", lessons())
def test_a_lesson_has_a_link_to_its_play(name: str) -> None:
    text = (ROOT / "docs" / "lessons" / name / "README.md").read_text(encoding="utf-8")
    assert f"http://127.0.0.1:8765/#/play?lesson={name}" in text


def flat(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested tables: {"policy": {"name": "ssp"}} becomes {"policy.name": "ssp"}."""
    found: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found
