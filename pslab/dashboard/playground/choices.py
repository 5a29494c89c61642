"""What the playground's controls choose from, as data: policies with their knobs, distributions, lessons."""

import inspect
import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from pslab.simulator.problems import PROBLEMS
from psserver import policies
from psserver.policies.loading import spec_of
from pswire.config.distributions import DISTRIBUTIONS
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
