"""Inner optimizers against Keras and against float64."""

import numpy as np
import pytest

from psworker.local.inner import Inner, InnerAdamW, Sgd, fresh
from tests.local import plain

STEPS = 30
CASES = {
    "sgd": (Sgd(0.1), {"learning_rate": 0.1}),
    "adamw": (
        InnerAdamW(0.01, weight_decay=0.1, beta_1=0.9, beta_2=0.99, epsilon=1e-6),
        {"learning_rate": 0.01, "weight_decay": 0.1, "beta_1": 0.9, "beta_2": 0.99, "epsilon": 1e-6},
    ),
}


def gradients() -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.standard_normal(12).astype(np.float32) for _ in range(STEPS)]


def moved(inner: Inner, sizes: tuple[int, ...]) -> np.ndarray:
    """After all gradients, with the vector split over servers."""
    cuts = np.cumsum(sizes)[:-1]
    x = [part.copy() for part in np.split(np.linspace(-1, 1, 12, dtype=np.float32), cuts)]
    slots = fresh(inner, sizes)
    for g in gradients():
        inner.step(x, np.split(g, cuts), slots)
    return np.concatenate(x)


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", CASES)
def test_the_formulas_are_those_of_keras(name: str) -> None:
    import keras

    inner, knobs = CASES[name]
    optimizer = {"sgd": keras.optimizers.SGD, "adamw": keras.optimizers.AdamW}[name](**knobs)
    variable = keras.Variable(np.linspace(-1, 1, 12, dtype=np.float32))
    for g in gradients():
        optimizer.apply([g], [variable])
    exact = 0 if name == "sgd" else 2e-6  # Keras' alpha is rounded otherwise
    np.testing.assert_allclose(moved(inner, (12,)), variable.numpy(), rtol=exact, atol=exact)


def test_adamw_is_its_formula_in_float64() -> None:
    reference, x = plain.AdamW(0.01, 0.1, 0.9, 0.99, 1e-6), np.linspace(-1, 1, 12)
    for g in gradients():
        x = reference.step(x, g.astype(np.float64))
    np.testing.assert_allclose(moved(CASES["adamw"][0], (12,)), x, atol=2e-6)


@pytest.mark.parametrize("name", CASES)
def test_the_number_of_servers_changes_no_bit(name: str) -> None:
    inner = CASES[name][0]
    assert moved(inner, (12,)).tobytes() == moved(inner, (5, 0, 7)).tobytes()
