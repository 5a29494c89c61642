"""Schedules against keras.optimizers.schedules, and at their corners."""

import math
from typing import Any

import numpy as np
import pytest

from psserver.optimizers import OptimizerError, build

STEPS = [*range(130), 999, 1000, 1001, 2**24 + 1, 2**40]

CASES: list[tuple[str, dict[str, Any]]] = [
    ("exponential", {"initial_learning_rate": 0.1, "decay_steps": 10, "decay_rate": 0.96}),
    ("exponential", {"initial_learning_rate": 0.1, "decay_steps": 7, "decay_rate": 0.5, "staircase": True}),
    ("exponential", {"initial_learning_rate": 1.0, "decay_steps": 1, "decay_rate": 1.0}),
    ("cosine", {"initial_learning_rate": 0.1, "decay_steps": 100}),
    ("cosine", {"initial_learning_rate": 0.1, "decay_steps": 100, "alpha": 0.1}),
    (
        "cosine",
        {"initial_learning_rate": 0.0, "decay_steps": 90, "warmup_target": 0.5, "warmup_steps": 20},
    ),
    (
        "cosine",
        {
            "initial_learning_rate": 0.3,
            "decay_steps": 9,
            "alpha": 0.2,
            "warmup_target": 0.1,
            "warmup_steps": 1,
        },
    ),
    ("piecewise", {"boundaries": [0], "values": [1.0, 0.1]}),
    ("piecewise", {"boundaries": [5, 6, 100], "values": [0.1, 0.02, 0.7, 0.003]}),
    ("polynomial", {"initial_learning_rate": 0.1, "decay_steps": 100}),
    ("polynomial", {"initial_learning_rate": 0.1, "decay_steps": 9, "end_learning_rate": 0.3, "power": 2.5}),
    ("polynomial", {"initial_learning_rate": 0.1, "decay_steps": 30, "power": 0.5, "cycle": True}),
    ("inverse-time", {"initial_learning_rate": 0.1, "decay_steps": 10, "decay_rate": 0.5}),
    ("inverse-time", {"initial_learning_rate": 0.1, "decay_steps": 7, "decay_rate": 3.0, "staircase": True}),
    ("cosine-restarts", {"initial_learning_rate": 0.1, "first_decay_steps": 16, "t_mul": 1.0, "m_mul": 0.9}),
    ("cosine-restarts", {"initial_learning_rate": 0.1, "first_decay_steps": 20, "alpha": 0.1}),
    ("cosine-restarts", {"initial_learning_rate": 0.2, "first_decay_steps": 10, "t_mul": 1.5, "m_mul": 0.5}),
]
KERAS = {
    "exponential": "ExponentialDecay",
    "cosine": "CosineDecay",
    "piecewise": "PiecewiseConstantDecay",
    "polynomial": "PolynomialDecay",
    "inverse-time": "InverseTimeDecay",
    "cosine-restarts": "CosineDecayRestarts",
}


def rates(schedule: dict[str, object], versions: list[int]) -> np.ndarray:
    optimizer = build({"name": "sgd", "learning_rate": schedule})
    return np.array([optimizer.rate(version) for version in versions], np.float32)


@pytest.mark.tensorflow
@pytest.mark.parametrize(("name", "knobs"), CASES)
def test_rates_equal_keras(name: str, knobs: dict[str, Any]) -> None:
    """Bit-equal for piecewise and the warm-up; within 2 ulp elsewhere, or 1e-8 of the peak near 0.

    Of cosines that restart the fraction is rounded, here once: within 2e-6 of the peak, at the steps where Keras'
    logarithm has room.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERAS_BACKEND", "tensorflow")
        keras = pytest.importorskip("keras")
    schedule = getattr(keras.optimizers.schedules, KERAS[name])(**knobs)
    with pytest.importorskip("tensorflow").device("CPU:0"):
        theirs = np.array([float(schedule(np.int64(step))) for step in STEPS], np.float32)
    ours = rates({"schedule": name, **knobs}, STEPS)
    exact = np.array([name == "piecewise" or step < knobs.get("warmup_steps", 0) for step in STEPS])
    np.testing.assert_array_equal(ours[exact], theirs[exact])
    if name == "cosine-restarts":
        begins = np.array([restarts(knobs, step) for step in STEPS])
        inside = (np.abs(begins - np.round(begins)) > 1e-4) & (np.array(STEPS) < 2000)
        assert inside.sum() > 100
        np.testing.assert_allclose(ours[inside], theirs[inside], rtol=0, atol=2e-6 * theirs.max())
        return
    np.testing.assert_allclose(ours, theirs, rtol=2.5e-7, atol=1e-8 * theirs.max())


def restarts(knobs: dict[str, Any], step: int) -> float:
    """How many cosines are over at `step`, with what there is of the next, by Keras' formula in float64."""
    done, growth = step / knobs["first_decay_steps"], knobs.get("t_mul", 2.0) - 1
    return done if not growth else math.log1p(done * growth) / math.log(1 + growth)


def test_a_restart_is_at_its_version() -> None:
    table = {
        "schedule": "cosine-restarts",
        "initial_learning_rate": 1.0,
        "first_decay_steps": 10,
        "m_mul": 0.5,
    }
    # 10, 20, 40, 80, ... versions long, half as high each.
    begins = [10 * (2**k - 1) for k in range(12)]
    assert rates(table, begins).tolist() == [0.5**k for k in range(12)]
    assert max(rates(table, [each - 1 for each in begins[1:]])) < 0.03


def test_the_first_update_uses_step_zero() -> None:
    halved = {"schedule": "exponential", "initial_learning_rate": 1.0, "decay_steps": 1, "decay_rate": 0.5}
    assert rates(halved, [0, 1, 2]).tolist() == [1.0, 0.5, 0.25]


def test_a_warm_up_reaches_its_target_and_the_decay_its_floor() -> None:
    knobs = {"initial_learning_rate": 0.0, "decay_steps": 10, "alpha": 0.25, "warmup_target": 1.0}
    got = rates({"schedule": "cosine", "warmup_steps": 4, **knobs}, [0, 1, 2, 4, 9, 14, 1000])
    np.testing.assert_allclose(got, [0, 0.25, 0.5, 1, 0.625, 0.25, 0.25], rtol=1e-6)


def test_a_boundary_belongs_to_the_value_before_it() -> None:
    table = {"schedule": "piecewise", "boundaries": [2, 4], "values": [3.0, 2.0, 1.0]}
    assert rates(table, [0, 2, 3, 4, 5]).tolist() == [3.0, 3.0, 2.0, 2.0, 1.0]


def test_constant_is_the_same_as_a_number() -> None:
    table = build({"name": "sgd", "learning_rate": {"schedule": "constant", "learning_rate": 0.5}})
    assert table == build({"name": "sgd", "learning_rate": 0.5})


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"decay_steps": 5}, 'needs "schedule", one of constant, exponential, cosine, piecewise, poly'),
        ({}, r"got the keys \(none\)"),
        ({"schedule": "cosin"}, 'did you mean "cosine"'),
        ({"schedule": 3}, "unknown schedule 3; known: constant"),
        (
            {"schedule": "cosine", "decay_step": 5},
            "has no knob 'decay_step'; did you mean \"decay_steps\"",
        ),
        ({"schedule": "exponential"}, "initial_learning_rate is missing; give a number >= 0"),
        (
            {"schedule": "exponential", "initial_learning_rate": 1, "decay_steps": 0, "decay_rate": 0.5},
            "decay_steps must be a whole number >= 1, got 0",
        ),
        (
            {"schedule": "exponential", "initial_learning_rate": 1, "decay_steps": 2.5, "decay_rate": 0.5},
            "decay_steps must be a whole number >= 1, got 2.5",
        ),
        (
            {"schedule": "cosine", "initial_learning_rate": 1, "decay_steps": 5, "warmup_steps": 3},
            "a warm-up needs both warmup_target",
        ),
        (
            {"schedule": "cosine", "initial_learning_rate": 1, "decay_steps": 5, "warmup_target": 3},
            "and warmup_steps=0; give both or neither",
        ),
        ({"schedule": "piecewise", "boundaries": [], "values": [1]}, "one or more rising versions"),
        (
            {"schedule": "piecewise", "boundaries": [4, 4], "values": [1, 2, 3]},
            r"rising versions, got \[4, 4\]",
        ),
        (
            {"schedule": "piecewise", "boundaries": [4], "values": [1]},
            r"one more than boundaries \(2\), got 1",
        ),
        (
            {"schedule": "piecewise", "boundaries": [4], "values": [1, "x"]},
            "values must be a list of numbers",
        ),
        ({"schedule": "piecewise", "boundaries": 4, "values": [1, 2]}, "boundaries must be a list of whole"),
    ],
)
def test_bad_tables_are_refused_in_words(table: dict[str, object], message: str) -> None:
    with pytest.raises(OptimizerError, match=message):
        build({"name": "sgd", "learning_rate": table})
