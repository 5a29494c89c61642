"""Rules that Keras lacks, against the formulas of their papers in float64; and that every rule has some oracle."""

from collections.abc import Callable

import numpy as np
import pytest

from psserver.optimizers import build, names
from tests.optimizers.test_keras import CASES

SIZE, STEPS = 500, 60
Slots = dict[str, np.ndarray]
Printed = Callable[[np.ndarray, np.ndarray, Slots], np.ndarray]


def yogi(x: np.ndarray, g: np.ndarray, s: Slots) -> np.ndarray:
    """Zaheer et al. (2018), algorithm 2."""
    s["momentum"] = 0.9 * s["momentum"] + 0.1 * g
    s["velocity"] = s["velocity"] - 0.001 * np.sign(s["velocity"] - g**2) * g**2
    return x - 0.01 * s["momentum"] / (np.sqrt(s["velocity"]) + 1e-3)


# Of rules at their defaults: the new weights; `s` advances in place.
PRINTED: dict[str, Printed] = {"yogi": yogi}
# In test_delayed_nesterov.py.
ELSEWHERE = {"delayed-nesterov"}
NOT_IN_KERAS = {*PRINTED, *ELSEWHERE}


@pytest.mark.parametrize("name", PRINTED)
def test_many_steps_equal_the_printed_formula(name: str) -> None:
    generator = np.random.default_rng(3)
    optimizer = build({"name": name})
    x = generator.standard_normal(SIZE).astype(np.float32)
    state = optimizer.init(SIZE)
    expected, slots = x.astype(np.float64), {key: slot.astype(np.float64) for key, slot in state.items()}
    for version in range(STEPS):
        g = (generator.standard_normal(SIZE) * 10.0 ** generator.uniform(-3, 1, SIZE)).astype(np.float32)
        expected = PRINTED[name](expected, g.astype(np.float64), slots)
        out = np.empty_like(x)
        optimizer.update(x, g, out, state, version=version, lr_scale=1.0)
        x = out
        for key, slot in slots.items():
            np.testing.assert_allclose(state[key], slot, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(x, expected, rtol=1e-4, atol=1e-4)


def test_every_rule_has_an_oracle() -> None:
    assert {*(case[0] for case in CASES), *PRINTED, *ELSEWHERE} == set(names())
