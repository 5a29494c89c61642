"""Bounds on what an update leaves behind hold for any numbers within the bounds on what it starts from."""

from random import Random
from typing import Any

import numpy as np
import pytest

from psserver.optimizers import build, names
from psserver.optimizers.magnitudes import LIMIT, Bounds, Magnitudes, after
from psserver.optimizers.rule import WholeRule
from tests.repetitions import seeds

SIZE = 4096
# Knobs at the ends of what is allowed and between; left out: the default, as for rules without rows.
KNOBS: dict[str, list[dict[str, Any]]] = {
    "sgd": [{}, {"weight_decay": 3.0}],
    "momentum": [{}, {"momentum": 1.0}, {"momentum": 0.0, "weight_decay": 0.1}, {"rate_outside": True}],
    "nesterov": [{}, {"momentum": 1.0, "weight_decay": 2.0}, {"rate_outside": True}],
    "delayed-nesterov": [{}, {"period": 1}, {"period": 3, "spread": 1.0, "momentum": 1.0}],
    "dana-zero": [{}, {"momentum": 1.0}],
    "adam": [
        {},
        {"beta_1": 0.0, "beta_2": 0.0},
        {"amsgrad": True, "epsilon": 1e-30},
        {"beta_2": 0.9999999},
        {"epsilon_outside": True},
    ],
    "adamw": [{}, {"weight_decay": 5.0, "epsilon": 1e-3}],
    "nadam": [
        {},
        {"beta_1": 0.0, "beta_2": 0.0},
        {"epsilon": 1e-20, "beta_1": 0.999},
        {"momentum_decay": 0.004},
    ],
    "adamax": [{}, {"beta_1": 0.0, "epsilon": 1e-30}, {"beta_1": 0.99999}, {"epsilon_inside": True}],
    "adagrad": [{}, {"initial_accumulator_value": 0.0, "epsilon": 1e-30}, {"epsilon_outside": True}],
    "adadelta": [{}, {"rho": 0.0}, {"rho": 0.999, "epsilon": 1e-20}],
    "rmsprop": [
        {},
        {"centered": True, "momentum": 0.9},
        {"rho": 0.0, "epsilon": 1e-30, "centered": True},
        {"epsilon_outside": True, "rate_outside": True, "momentum": 0.9, "centered": True},
    ],
    "lion": [{}, {"beta_1": 1.0, "beta_2": 0.0}],
    "lamb": [{}, {"beta_1": 0.0, "beta_2": 0.0}, {"epsilon": 1e-30}, {"weight_decay": 3.0}],
    "adafactor": [
        {},
        {"beta_2_decay": 0.0},
        {"clip_threshold": 100.0},
        {"epsilon_1": 1e-3, "weight_decay": 0.1},
    ],
    "ftrl": [
        {},
        {"l1_regularization_strength": 2.0, "l2_shrinkage_regularization_strength": 1.0, "beta": 1.0},
    ],
}
# Slots of rules on whole variables that are never negative; others say so themselves.
SQUARES = {"lamb": {"velocity"}, "adafactor": {"rows", "columns"}}


def fill(draw: np.random.Generator, bound: float, *, positive: bool) -> np.ndarray:
    """Numbers of all sizes up to the bound, the bound itself and zero among them."""
    exponents = draw.uniform(-140, 0, SIZE) * (draw.random(SIZE) < 0.7)
    values = bound * np.exp2(exponents)
    values[draw.random(SIZE) < 0.1] = 0.0
    values[draw.random(SIZE) < 0.2] = bound
    signs = 1.0 if positive else draw.choice([-1.0, 1.0], SIZE)
    with np.errstate(all="ignore"):
        found = np.minimum(np.abs(values), np.float32(bound)).astype(np.float32)
    return (np.minimum(found, np.nextafter(np.float32(bound), np.float32(0))) * np.float32(signs)).astype(
        np.float32
    )


def bounded(name: str, knobs: dict[str, Any], seed: int) -> None:
    chance, draw = Random(f"{name} {knobs} {seed}"), np.random.default_rng([seed, len(name)])
    rate = 10 ** chance.uniform(-6, 1)
    optimizer = build({"name": name, "learning_rate": rate, **knobs})

    # Magnitudes of ordinary trainings, and at the edge of what is bounded at all.
    def edge() -> float:
        return 2.0 ** chance.choice([chance.uniform(-20, 20), chance.uniform(20, 100)])

    before = {key: edge() for key in ("x", *optimizer.slots)}
    gradient, version = edge(), chance.choice([0, 1, 2, 10, 1000, 100_000])
    bounds = after(optimizer.rule, optimizer.rate(version), version + 1, gradient, before)
    if bounds is None:
        return
    assert all(bound <= LIMIT for bound in bounds.values())
    rule = optimizer.rule
    squares = SQUARES[name] if isinstance(rule, WholeRule) else set(rule.positive)
    x = fill(draw, before["x"], positive=False)
    slots = {key: fill(draw, before[key], positive=key in squares) for key in optimizer.slots}
    if name == "rmsprop" and "average_gradient" in slots:
        # What both have seen: the mean square is at least the square of the mean, but for rounding.
        with np.errstate(all="ignore"):
            square = np.maximum(slots["velocity"], slots["average_gradient"] ** 2)
        slots["velocity"] = np.minimum(square, np.float32(before["velocity"])).astype(np.float32)
    if name == "ftrl":
        # It starts from there, and never falls.
        slots["accumulator"] = np.maximum(slots["accumulator"], np.float32(0.1))
        if before["accumulator"] < 0.1:
            return
    g, out = fill(draw, gradient, positive=False), np.empty(SIZE, np.float32)
    assert optimizer.update(x, g, out, slots, version=version, lr_scale=1.0), (
        name,
        knobs,
        seed,
        before,
        gradient,
    )
    for key, values in {"x": out, **slots}.items():
        assert float(np.abs(values).max()) <= bounds[key], (name, key, seed)


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("case", range(4))
def test_nothing_is_beyond_its_bound(name: str, case: int) -> None:
    for seed in seeds(60, soak=2000):
        rows = KNOBS.get(name, [{}])
        knobs = rows[case % len(rows)]
        bounded(name, knobs, seed * 4 + case)


@pytest.mark.parametrize("name", names())
def test_an_ordinary_training_is_bounded_for_many_updates(name: str) -> None:
    """Otherwise the shards would be asked all the time: once in a hundred updates is little (`ftrl`, and rules
    with norms, more often)."""
    optimizer = build({"name": name})
    first = optimizer.rule.initial
    held = {key: first[key] if isinstance(first, dict) and key in first else 0.1 for key in optimizer.slots}
    bounds: dict[str, float] | None = {"x": 2.0**20, **held}
    count = 0
    while bounds is not None and count < 300:
        bounds = after(optimizer.rule, optimizer.rate(count), count + 1, 2.0**20, bounds)
        count += bounds is not None
    fewest = {"ftrl": 3, "adadelta": 60, "lamb": 5, "adafactor": 5}
    assert count >= fewest.get(name, 300), count


@pytest.mark.parametrize(
    ("x", "peak"), [(float("inf"), 1.0), (float("nan"), 1.0), (LIMIT, 1.0), (1.0, LIMIT), (1.0, float("nan"))]
)
def test_a_bound_that_is_too_large_says_that_nobody_knows(x: float, peak: float) -> None:
    class Fixed:
        def bounds(self, rate: float, step: int, g: float, b: Magnitudes) -> Bounds:
            return {"x": x}, peak

    assert after(Fixed(), np.float32(0.1), 1, 1.0, {"x": 1.0}) is None


def test_an_overflow_says_that_nobody_knows() -> None:
    class Overflowing:
        def bounds(self, rate: float, step: int, g: float, b: Magnitudes) -> Bounds:
            return {"x": 2.0 ** int(1e4 * g)}, g

    assert after(Overflowing(), np.float32(0.1), 1, 1.0, {"x": 1.0}) is None
