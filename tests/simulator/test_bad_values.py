"""Bad values of every key of an experiment: each is refused in one sentence that names the key, or does no harm."""

import math
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
from pydantic import BaseModel

from pslab.experiment import Experiment
from pslab.simulator import SimulationError, build
from pslab.simulator.problems import PROBLEMS
from psserver.optimizers import OptimizerError
from psserver.policies import PolicyError
from pswire.config.experiment import ExperimentError
from tests.replay.command import ps_lab

BAD = (-1, 0, 0.5, 1e20, 10**23, math.nan, math.inf, "x", "", True, [], {})
TIMES = (
    *BAD,
    "constant(-1)",
    "constant(1e18)",
    "1e9 * constant(1e9)",
    "exponential(nan)",
    "constant()",
    "uniform(2, 1)",
)


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from keys(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name


def document(**simulation: Any) -> dict[str, Any]:
    return {
        "run": {"versions": 2},
        "cluster": {"workers": 2},
        "policy": {"name": "bounded"},
        "simulation": {"problem": "quadratic", **simulation},
    }


def put(found: dict[str, Any], key: str, value: object) -> dict[str, Any]:
    *tables, last = key.split(".")
    table = found
    for name in tables:
        table = table.setdefault(name, {})
    table[last] = value
    return found


def refusal(found: dict[str, Any]) -> str:
    """What parsing, or the simulator, says against a document; empty if it would run."""
    try:
        build(Experiment.parse(found, "file"))
    except (ExperimentError, SimulationError, PolicyError, OptimizerError) as error:
        return str(error)
    return ""


KEYS = (
    *keys(Experiment),
    *("policy.max_staleness", "policy.aggregate", "optimizer.weight_decay"),
    *("workers.0.delay", "simulation.factors.0"),
)


@pytest.mark.parametrize("key", KEYS)
def test_a_bad_value_is_refused_by_its_key_in_a_line(key: str) -> None:
    for value in TIMES if key in ("simulation.compute", "workers.0.delay") else BAD:
        said = refusal(put(document(), key, value))
        assert "\n" not in said and len(said) < 400 and "Input should" not in said, (value, said)
        assert not said or key.rpartition(".")[2] in said or "job.module: missing" in said or value == "x", (
            value,
            said,
        )


@pytest.mark.parametrize("problem", PROBLEMS)
def test_an_option_of_a_problem_has_a_range(problem: str) -> None:
    for option in fields(PROBLEMS[problem]):
        for value in (-1, 1e20, 10**23, math.nan, math.inf, "x", "", [], {}):
            said = refusal(document(problem=problem, options={option.name: value}))
            assert f"simulation.options: {option.name} must be " in said or (option.name, value) == (
                "start",
                -1,
            )


WHOLE = "expected a whole number from"


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("run.seed", 1e20, f"{WHOLE} 0 to 9223372036854775807, got 1e+20"),
        ("run.versions", 1e20, f"{WHOLE} 0 to 9007199254740991, got 1e+20"),
        ("cluster.workers", -1, f"{WHOLE} 1 to 65536, got -1"),
        ("cluster.ticket_timeout", -1, "expected 'auto' or a number from 0 to 1000000000, got -1"),
        ("faults.loss", 1, "expected a number at least 0 and below 1, got 1"),
    ],
)
def test_a_refusal_names_both_ends(key: str, value: object, expected: str) -> None:
    assert refusal(put(document(), key, value)) == f"file: {key}: {expected}"


def test_a_knob_s_refusal_names_the_end_that_goes_without_saying() -> None:
    said = refusal(put(document(), "policy.max_staleness", 1e20))
    assert said.endswith("max_staleness must be a whole number from 0 to 9223372036854775807, got 1e+20")


def test_a_factor_cannot_make_a_step_too_long() -> None:
    said = refusal(document(compute="constant(1e6)", factors={"1": 1e6}))
    assert said.startswith("worker 1: simulation.compute = constant(1e6), with factor 1e+06 takes 1e+12 s")


@pytest.mark.parametrize("key", ["links.latency", "faults.crashes.0.worker", "simulation.factors.0"])
def test_what_set_gave_is_blamed_on_set(key: str, tmp_path: Any) -> None:
    file = tmp_path / "good.toml"
    file.write_text("[run]\nversions = 1\n", encoding="utf-8")
    given = "faults.crashes=[{worker = -1, at = 1.0}]" if key.startswith("faults") else f"{key}=-1"
    said = ps_lab("run", file, "--engine", "simulated", "--set", given)
    assert said.code == 2 and str(file) not in said.err
    assert said.err.startswith(f"Error: --set {given.partition('=')[0]}: ") and key in said.err
