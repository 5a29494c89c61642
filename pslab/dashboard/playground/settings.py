"""The choices of the playground's controls, and a page's settings as an experiment that any visitor may run."""

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from pslab.experiment import Experiment
from pslab.simulator.problems import PROBLEMS
from psserver import policies
from psserver.policies.loading import class_of
from pswire.config.distributions import DISTRIBUTIONS, parse
from pswire.config.experiment import ExperimentError
from pswire.knobs import knobs_of


@cache
def lessons() -> Mapping[str, Mapping[str, Any]]:
    """Return the lessons by folder: title, what to look at, `settings`, and those of a second run if there is one."""
    text = files("pslab.dashboard.playground").joinpath("lessons.json").read_text(encoding="utf-8")
    found: dict[str, Mapping[str, Any]] = json.loads(text)
    return found


@cache
def choices() -> dict[str, Any]:
    """Return everything that the controls offer."""
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
    made = class_of(name)
    rule = (inspect.getdoc(made) or "").partition("\n")[0].replace("`", "")
    return {
        "name": name,
        "rule": rule,
        "guarantee": getattr(made, "guarantee", ""),
        "source": getattr(made, "source", ""),
        "knobs": [{"name": knob.name, **knob.to_json()} for knob in knobs_of(made)],
    }


# Limits on what a visitor may request.
MOST_WORKERS, MOST_SERVERS, MOST_BATCH, MOST_HIDDEN, MOST_DIMENSIONS = 64, 8, 512, 128, 1000
MOST_UNITS = 10_000
MOST_TEXT = 8000
# Sections that reach beyond the simulation: code, files, other programs.
FORBIDDEN = ("job",)


class PlaygroundError(ValueError):
    """Settings that cannot be simulated; the message says which and why."""


@dataclass(frozen=True)
class Play:
    """A request. `settings` are flat: {"policy.name": "ssp", "policy.slack": 3}."""

    settings: Mapping[str, Any]

    @property
    def key(self) -> str:
        """A cache key: equal requests have equal keys."""
        return json.dumps(self.settings, sort_keys=True)


def read_play(text: str) -> Play:
    """Parse JSON such as {"settings": {...}}. Raises SettingsError."""
    if len(text) > MOST_TEXT:
        raise PlaygroundError(f"the settings have {len(text)} characters; expected at most {MOST_TEXT}")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PlaygroundError(f"the settings are not JSON: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("settings"), dict):
        raise PlaygroundError('expected {"settings": {...}}, got something else')
    return Play(document["settings"])


def experiment_of(flat: Mapping[str, Any]) -> Experiment:
    """Build an experiment. Raises SettingsError if it is invalid, too large, or names files or code."""
    try:
        experiment = Experiment.parse(_nested(flat), "settings")
    except ExperimentError as error:
        raise PlaygroundError(str(error)) from error
    _check_closed(experiment)
    _check_size(experiment)
    return experiment


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for key, value in flat.items():
        *path, last = key.split(".")
        if not all(path) or not path or not last or len(path) > 3:
            raise PlaygroundError(f"expected a key such as policy.name, got {key!r}")
        table = document
        for part in path:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise PlaygroundError(f"{key!r}: {part} is a value, not a table")
        table[last] = value
    for section in FORBIDDEN:
        if section in document:
            raise PlaygroundError(f"{section}: the playground runs no foreign code; remove this section")
    return document


def _check_closed(experiment: Experiment) -> None:
    """Raise SettingsError if the experiment names files or code."""
    if ":" in experiment.policy.name:
        raise PlaygroundError(
            f"policy {experiment.policy.name}: expected a built-in policy: the playground runs no foreign code"
        )
    if experiment.simulation.problem not in ("auto", "none", *PROBLEMS):
        raise PlaygroundError(
            f"simulation.problem: expected none, {', '.join(PROBLEMS)}, got {experiment.simulation.problem}"
        )
    delays = [experiment.simulation.compute, *(worker.delay for worker in experiment.workers.values())]
    for text in delays:
        if parse(text).name not in DISTRIBUTIONS:
            raise PlaygroundError(
                f"{text}: expected {', '.join(DISTRIBUTIONS)}: the playground reads no files"
            )


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
    for key, value, limit in given:
        if isinstance(value, int | float) and value > limit:
            raise PlaygroundError(f"{key}: expected at most {limit} in the playground, got {value}")
    events = len([*faults.crashes, *faults.leaves, *faults.joins, *faults.disconnects])
    if events > 200:
        raise PlaygroundError(f"faults: expected at most 200 in the playground, got {events}")
