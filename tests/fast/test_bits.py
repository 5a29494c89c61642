"""Compiled loops and threads give the bits of numpy, for every optimizer and every fold.

numpy's operations, one by one, are the oracle.
"""

from collections.abc import Iterator

import numpy as np
import pytest

from psserver.fast import ALONE, Backend
from psserver.optimizers import Optimizer, build, names
from tests.optimizers.twin import NumpyBackend, decays

SIZE = 20_011
# Rules that see whole variables have numpy only.
NAMES = [name for name in names() if not build({"name": name}).whole]
CONFIGS: list[dict[str, object]] = [
    *({"name": name} for name in NAMES),
    {"name": "delayed-nesterov", "period": 1},
    {"name": "delayed-nesterov", "period": 3, "spread": 0.5},
    {"name": "adam", "amsgrad": True, "beta_1": 0.0},
    {"name": "adamw", "amsgrad": True, "weight_decay": 0.1},
    *({"name": name, "weight_decay": 0.1} for name in NAMES if name != "adamw" and decays(name)),
    {"name": "ftrl", "l1_regularization_strength": 0.01, "beta": 0.1},
    {"name": "rmsprop", "momentum": 0.9},
    {"name": "rmsprop", "centered": True},
    {"name": "rmsprop", "centered": True, "momentum": 0.5},
    *({"name": name, "rate_outside": True} for name in ("momentum", "nesterov")),
    *({"name": name, "epsilon_outside": True} for name in ("adam", "adagrad")),
    {"name": "rmsprop", "epsilon_outside": True, "rate_outside": True, "centered": True, "momentum": 0.9},
    {"name": "adamax", "epsilon_inside": True},
    {"name": "nadam", "momentum_decay": 0.004},
    {"name": "adam", "clipvalue": 0.01},
    {"name": "adam", "clipnorm": 0.5},
    {"name": "sgd", "global_clipnorm": 0.5},
]
every_optimizer = pytest.mark.parametrize(
    "config", CONFIGS, ids=["-".join(map(str, c.values())) for c in CONFIGS]
)


@pytest.fixture
def backend() -> Iterator[Backend]:
    """Other tests have one thread."""
    with Backend(3, grain=1024) as backend:
        yield backend


def gradients(version: int) -> np.ndarray:
    """Fifteen decades; every third version half of it is zero, from version 40 on all of it."""
    generator = np.random.default_rng(version)
    g = generator.standard_normal(SIZE) * 10.0 ** generator.uniform(-12, 3, SIZE)
    if version % 3 == 0:
        g[generator.random(SIZE) < 0.5] = -0.0
    return (g * (version < 40)).astype(np.float32)


def train(
    optimizer: Optimizer, backend: Backend | NumpyBackend, versions: int, factor: float, scale: float
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Version 63 sweeps the slots."""
    x = np.random.default_rng(1).standard_normal(SIZE).astype(np.float32)
    state = optimizer.init(SIZE)
    for version in range(versions):
        out = np.full(SIZE, np.nan, np.float32)
        optimizer.update(
            x,
            gradients(version),
            out,
            state,
            version=version,
            lr_scale=0.7,
            factor=factor,
            scale=scale,
            backend=backend,
        )
        x = out
    return x, state


def assert_same_bits(ours: np.ndarray, oracle: np.ndarray) -> None:
    """NaN for NaN, whatever its payload; everything else to the bit, signs of zeros too."""
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(oracle))
    number = ~np.isnan(oracle)
    np.testing.assert_array_equal(ours[number].view(np.uint32), oracle[number].view(np.uint32))


@every_optimizer
def test_many_versions(config: dict[str, object], backend: Backend) -> None:
    optimizer = build(config)
    x, state = train(optimizer, backend, 66, factor=0.3, scale=1 / 3)
    expected, slots = train(optimizer, NumpyBackend(optimizer), 66, factor=0.3, scale=1 / 3)
    assert_same_bits(x, expected)
    for slot in optimizer.slots:
        assert_same_bits(state[slot], slots[slot])
    assert np.isfinite(x).all()


@every_optimizer
def test_overflow_and_extremes(config: dict[str, object]) -> None:
    """Where float32 ends: subnormal numbers and signed zeros come out alike, and the same elements are kept back."""
    optimizer = build(config)
    edges = np.array([0, 1e-45, 1e-38, 1e-20, 1, 3e19, 3e38, np.inf, np.nan], np.float32)
    edges = np.concatenate([edges, -edges])
    x, g = (a.reshape(-1).copy() for a in np.meshgrid(edges, edges))
    results = []
    for each in (ALONE, NumpyBackend(optimizer)):
        state, out = optimizer.init(x.size), np.empty_like(x)
        optimizer.update(x, g.copy(), out, state, version=63, lr_scale=1.0, scale=3.0, backend=each)
        results.append([out, *state.values()])
    for ours, oracle in zip(*results, strict=True):
        assert_same_bits(ours, oracle)


def test_a_product_and_a_sum_are_rounded_one_by_one() -> None:
    """A fused multiply-add would round once; the data show the difference."""
    optimizer = build({"name": "sgd", "learning_rate": 0.1})
    generator = np.random.default_rng(3)
    x, g = (generator.standard_normal(SIZE).astype(np.float32) for _ in range(2))
    out = np.empty_like(x)
    optimizer.update(x, g.copy(), out, {}, version=0, lr_scale=1.0)
    # The product of two float32 is exact in float64.
    contracted = (x.astype(np.float64) - g.astype(np.float64) * np.float32(0.1)).astype(np.float32)
    assert (contracted != x - g * np.float32(0.1)).any(), "the case must occur"
    assert_same_bits(out, x - g * np.float32(0.1))


@every_optimizer
def test_factor_and_scale_are_two_multiplications(config: dict[str, object]) -> None:
    optimizer = build(config)
    x, g = gradients(1), gradients(2)
    g = np.clip(g, -1, 1)
    results = []
    for gradient, factor, scale in ((g, 0.1, 0.7), (g * np.float32(0.1) * np.float32(0.7), 1.0, 1.0)):
        state, out = optimizer.init(SIZE), np.empty(SIZE, np.float32)
        optimizer.update(x, gradient.copy(), out, state, version=0, lr_scale=1.0, factor=factor, scale=scale)
        results.append(out)
    assert_same_bits(*results)


def test_read_only_weights_are_accepted() -> None:
    """A published version may be mapped read-only; its type is another one to the compiler."""
    optimizer = build({"name": "adam"})
    x = np.ones(10, np.float32)
    x.flags.writeable = False
    out, state = np.empty(10, np.float32), optimizer.init(10)
    optimizer.update(x, np.ones(10, np.float32), out, state, version=0, lr_scale=1.0)
    assert (out < 1).all()
