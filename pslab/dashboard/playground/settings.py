"""What the playground's controls choose from, and from what a page sends to an experiment that anybody may play."""

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from pslab.simulator.problems import PROBLEMS
from psserver import policies
from psserver.policies.loading import spec_of
from pswire.config.distributions import DISTRIBUTIONS, parse
from pswire.config.experiment import Experiment, ExperimentError, parse_experiment
from pswire.knobs import knobs_of


@cache
def lessons() -> Mapping[str, Mapping[str, Any]]:
    """By the lesson's folder: title, what to look at, `settings`, and those of the second run where there are two."""
    text = files("pslab.dashboard.playground").joinpath("lessons.json").read_text(encoding="utf-8")
    found: dict[str, Mapping[str, Any]] = json.loads(text)
    return found


@cache
def choices() -> dict[str, Any]:
    return {
        "policies": [_policy(name) for name in policies.names()],
        "distributions": {
            name: [{"name": knob.name, "meaning": knob.meaning} for knob in found.parameters]
            for name, found in DISTRIBUTIONS.items()
        },
        "problems": ["none", *PROBLEMS],
        "lessons": lessons(),
    }


def _policy(name: str) -> dict[str, Any]:
    spec = spec_of(name)
    rule = (inspect.getdoc(spec) or "").partition("\n")[0].replace("`", "")
    return {
        "name": name,
        "rule": rule,
        "guarantee": spec.guarantee,
        "source": spec.source,
        "knobs": [{"name": knob.name, **knob.to_json()} for knob in knobs_of(spec)],
    }


# What a visitor may ask of this machine.
MOST_WORKERS, MOST_SERVERS, MOST_BATCH, MOST_HIDDEN, MOST_DIMENSIONS = 64, 8, 512, 128, 1000
MOST_UNITS = 10_000
MOST_TEXT = 8000
# Sections that reach beyond the simulation: code, files, other programs.
SHUT = ("job", "trackers")


class SettingsError(ValueError):
    """Settings that cannot be played; the text says which and why."""


@dataclass(frozen=True)
class Play:
    """`settings` and `changes` are flat: {"policy.name": "ssp", "policy.slack": 3}. `at`: seconds; None: no change."""

    settings: Mapping[str, Any]
    at: float | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Equal plays have equal keys."""
        return json.dumps([self.settings, self.at, self.changes], sort_keys=True)

    @property
    def changed(self) -> dict[str, Any]:
        return {**self.settings, **self.changes}


def read_play(text: str) -> Play:
    """From JSON: {"settings": {...}, "at": 3.5, "changes": {...}}. Raises SettingsError."""
    if len(text) > MOST_TEXT:
        raise SettingsError(f"the settings have {len(text)} characters; expected at most {MOST_TEXT}")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"the settings are not JSON: {error}") from error
    if not isinstance(document, dict):
        raise SettingsError('expected {"settings": {...}}, got something else')
    settings, changes, at = document.get("settings"), document.get("changes", {}), document.get("at")
    if not isinstance(settings, dict) or not isinstance(changes, dict):
        raise SettingsError('expected objects as "settings" and "changes"')
    if at is not None and (isinstance(at, bool) or not isinstance(at, int | float) or not 0 <= at < 1e9):
        raise SettingsError(f'"at" is a moment in seconds, 0 or more, got {at!r}')
    return Play(settings, None if at is None else float(at), changes)


def experiment_of(flat: Mapping[str, Any]) -> Experiment:
    """Raises SettingsError for what is no experiment, too large for a page, or names code or files."""
    try:
        experiment = parse_experiment(_nested(flat), "settings")
    except ExperimentError as error:
        raise SettingsError(str(error)) from error
    _check_shut(experiment)
    _check_size(experiment)
    return experiment


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for key, value in flat.items():
        *path, last = key.split(".")
        if not all(path) or not path or not last or len(path) > 3:
            raise SettingsError(f"{key!r} is no key; expected something like policy.name")
        table = document
        for part in path:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise SettingsError(f"{key!r}: {part} is a value, not a table")
        table[last] = value
    for section in SHUT:
        if section in document:
            raise SettingsError(f"{section}: the playground runs no code of others; remove it")
    return document


def _check_shut(experiment: Experiment) -> None:
    if ":" in experiment.policy.name:
        raise SettingsError(
            f"policy {experiment.policy.name}: expected a built-in one; others are code of others"
        )
    if experiment.simulation.problem not in ("auto", "none", *PROBLEMS):
        raise SettingsError(
            f"simulation.problem: expected none, {', '.join(PROBLEMS)}, got {experiment.simulation.problem}"
        )
    delays = [experiment.simulation.compute, *(worker.delay for worker in experiment.workers.values())]
    for text in delays:
        if parse(text).name not in DISTRIBUTIONS:
            raise SettingsError(f"{text}: the playground reads no files; expected {', '.join(DISTRIBUTIONS)}")


def _check_size(experiment: Experiment) -> None:
    cluster, options, faults = experiment.cluster, experiment.simulation.options, experiment.faults
    given = (
        ("cluster.workers", cluster.workers, MOST_WORKERS),
        ("cluster.servers", cluster.servers, MOST_SERVERS),
        ("simulation.options.batch_size", options.get("batch_size", 1), MOST_BATCH),
        ("simulation.options.hidden", options.get("hidden", 1), MOST_HIDDEN),
        ("simulation.options.dimensions", options.get("dimensions", 1), MOST_DIMENSIONS),
        ("simulation.options.batches_per_epoch", options.get("batches_per_epoch", 1), 100_000),
        ("simulation.units", experiment.simulation.units, MOST_UNITS),
        ("faults.joins.worker", max((join.worker for join in faults.joins), default=0), MOST_WORKERS),
        ("policy.steps", experiment.policy.knobs.get("steps", 1), 64),
    )
    for key, value, most in given:
        if isinstance(value, int | float) and value > most:
            raise SettingsError(f"{key} is {value}; the playground has at most {most}")
    events = len([*faults.crashes, *faults.leaves, *faults.joins, *faults.disconnects])
    if events > 200:
        raise SettingsError(f"{events} faults; the playground has at most 200")
