"""One contract, every optimizer: what a shard relies on."""

import threading
from collections.abc import Mapping

import numpy as np
import pytest

from psserver.fast import Backend
from psserver.optimizers import Optimizer, OptimizerError, build, names
from psserver.optimizers.rule import WholeRule
from tests.optimizers.twin import decays

CONFIGS: list[dict[str, object]] = [
    *({"name": name} for name in names()),
    {"name": "momentum", "momentum": 0.0},
    {"name": "nesterov", "momentum": 1.0},
    {"name": "delayed-nesterov", "period": 1},
    {"name": "delayed-nesterov", "period": 3, "spread": 0.5},
    {"name": "adam", "amsgrad": True, "beta_1": 0.0},
    {"name": "adamw", "amsgrad": True, "weight_decay": 0.1},
    *({"name": name, "weight_decay": 0.1} for name in names() if decays(name)),
    {"name": "adafactor", "clip_threshold": 0.1, "beta_2_decay": -0.5},
    {"name": "ftrl", "l1_regularization_strength": 0.01, "beta": 0.1},
    {"name": "rmsprop", "momentum": 0.9},
    {"name": "rmsprop", "centered": True},
    {"name": "rmsprop", "centered": True, "momentum": 0.5},
    {
        "name": "sgd",
        "learning_rate": {
            "schedule": "exponential",
            "initial_learning_rate": 0.1,
            "decay_steps": 2,
            "decay_rate": 0.5,
        },
    },
]
every_optimizer = pytest.mark.parametrize(
    "optimizer", [build(c) for c in CONFIGS], ids=["-".join(map(str, c.values()))[:40] for c in CONFIGS]
)
GRAIN = 1000
SIZES = [0, 1, 7, 4 * GRAIN - 1, 4 * GRAIN, 4 * GRAIN + 1, 7 * GRAIN + 3]


def floats(size: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def train(
    optimizer: Optimizer, size: int, versions: int, lr_scale: float = 1.0
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Run from fixed weights with fixed gradients; return the last weights and slots."""
    x, state = floats(size, seed=1), optimizer.init(size)
    for version in range(versions):
        out = np.full(size, np.nan, np.float32)
        gradient = floats(size, seed=100 + version)
        optimizer.update(x, gradient, out, state, version=version, lr_scale=lr_scale)
        x = out
    return x, state


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.tobytes() == b.tobytes()


@every_optimizer
def test_x_is_only_read(optimizer: Optimizer) -> None:
    x, out = floats(1000, seed=1), np.empty(1000, np.float32)
    before = x.copy()
    x.flags.writeable = False
    optimizer.update(x, floats(1000, seed=2), out, optimizer.init(1000), version=0, lr_scale=1.0)
    assert same_bits(x, before)
    assert not same_bits(out, before)


@every_optimizer
def test_what_out_held_before_does_not_matter(optimizer: Optimizer) -> None:
    results = []
    for leftover in (0.0, np.nan, np.inf):
        out = np.full(50, leftover, np.float32)
        optimizer.update(floats(50, 1), floats(50, 2), out, optimizer.init(50), version=0, lr_scale=1.0)
        results.append(out.tobytes())
    assert len(set(results)) == 1


@every_optimizer
@pytest.mark.parametrize("size", SIZES)
def test_ranges_on_threads_do_not_change_a_bit(optimizer: Optimizer, size: int) -> None:
    """Against one thread over the whole arena; 64 is a version at which slots are swept."""
    if isinstance(optimizer.rule, WholeRule):
        return  # runs in numpy, in one thread
    x, whole, parts = floats(size, seed=3), optimizer.init(size), optimizer.init(size)
    with Backend(3, grain=GRAIN) as backend:
        for version in (0, 1, 63):
            gradient = floats(size, seed=version)
            expected, out = np.empty_like(x), np.empty_like(x)
            optimizer.update(x, gradient.copy(), expected, whole, version=version, lr_scale=1.0)
            optimizer.update(x, gradient, out, parts, version=version, lr_scale=1.0, backend=backend)
            assert same_bits(out, expected)
            assert all(same_bits(parts[slot], whole[slot]) for slot in optimizer.slots)
            x = out


@every_optimizer
def test_same_input_same_bits(optimizer: Optimizer) -> None:
    (x, state), (y, other) = train(optimizer, 300, 20), train(optimizer, 300, 20)
    assert same_bits(x, y)
    assert all(same_bits(state[slot], other[slot]) for slot in optimizer.slots)


@every_optimizer
def test_the_slots_and_the_version_are_all_that_is_remembered(optimizer: Optimizer) -> None:
    """A restore from copies of weights and slots, into a new optimizer, goes on with the same bits."""
    straight, _ = train(optimizer, 200, 6)
    x, state = train(optimizer, 200, 4)
    restored, state = build(optimizer.config), {slot: array.copy() for slot, array in state.items()}
    for version in (4, 5):
        out = np.empty_like(x)
        restored.update(x, floats(200, seed=100 + version), out, state, version=version, lr_scale=1.0)
        x = out
    assert same_bits(x, straight)


@every_optimizer
def test_weights_and_slots_stay_finite(optimizer: Optimizer) -> None:
    x, state = train(optimizer, 64, 300)
    assert np.isfinite(x).all()
    assert all(np.isfinite(array).all() for array in state.values())


@every_optimizer
def test_zero_gradients_from_the_start_move_nothing_but_decay(optimizer: Optimizer) -> None:
    x, state = floats(10, 1), optimizer.init(10)
    out = np.empty_like(x)
    optimizer.update(x, np.zeros_like(x), out, state, version=0, lr_scale=1.0)
    if optimizer.name == "ftrl":
        assert not out.any()  # its weights are made from gradients alone; see the rule
    elif optimizer.rule.weight_decay:
        assert (np.abs(out) < np.abs(x)).all()
    else:
        assert np.array_equal(out, x)


@every_optimizer
def test_lr_scale_multiplies_the_rate(optimizer: Optimizer) -> None:
    """The first step is proportional to the rate under every rule; 0 stops all motion."""
    if optimizer.config.get("beta"):
        return  # ftrl's beta is a second rate beside the rate
    x, steps = np.zeros(100, np.float32), {}
    for lr_scale in (0.0, 0.25, 1.0):
        out = np.empty_like(x)
        optimizer.update(x, floats(100, 2), out, optimizer.init(100), version=0, lr_scale=lr_scale)
        steps[lr_scale] = out
    assert not steps[0.0].any()
    assert steps[1.0].all()
    np.testing.assert_allclose(steps[0.25], steps[1.0] / 4, rtol=1e-6)


@every_optimizer
def test_slots_are_float32_of_the_arena_size(optimizer: Optimizer) -> None:
    state = optimizer.init(17)
    assert tuple(state) == optimizer.slots
    assert all(slot.dtype == np.float32 and slot.shape == (17,) for slot in state.values())


@every_optimizer
def test_long_zero_gradients_leave_no_subnormals(optimizer: Optimizer) -> None:
    """Decaying averages would stay subnormal, and slow, for ever."""
    state = optimizer.init(4)
    for name, slot in state.items():
        slot[:] = [1e-40, -1e-40, 0.0, 2e-38]
        if name in ("accumulator", "velocity"):  # of squares
            np.abs(slot, out=slot)
    x, out = np.ones(4, np.float32), np.empty(4, np.float32)
    optimizer.update(x, np.zeros(4, np.float32), out, state, version=63, lr_scale=1.0)
    tiny = np.finfo(np.float32).tiny
    assert all(((slot == 0) | (np.abs(slot) >= tiny)).all() for slot in state.values())


def test_centered_rmsprop_survives_rounding_below_zero() -> None:
    """Large constant gradients: v - a*a is zero in theory and negative in float32."""
    optimizer = build({"name": "rmsprop", "centered": True})
    size = 1000
    x, state = np.zeros(size, np.float32), optimizer.init(size)
    for version in range(300):
        gradient = np.linspace(1e3, 1e4, size, dtype=np.float32)
        out = np.empty_like(x)
        optimizer.update(x, gradient, out, state, version=version, lr_scale=1.0)
        x = out
    mean = state["average_gradient"]
    assert (state["velocity"] - mean * mean + np.float32(1e-7) <= 0).any(), "the case must occur"
    assert np.isfinite(x).all()


def test_threads_on_disjoint_arrays_agree_with_one_thread() -> None:
    optimizer = build({"name": "adam"})
    expected, _ = train(optimizer, 40_000, 5)
    results: dict[int, np.ndarray] = {}

    def run(index: int) -> None:
        results[index] = train(optimizer, 40_000, 5)[0]

    threads = [threading.Thread(target=run, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 3
    assert all(same_bits(x, expected) for x in results.values())


def refused(
    match: str,
    *,
    x: np.ndarray | None = None,
    gradient: np.ndarray | None = None,
    out: np.ndarray | None = None,
    state: Mapping[str, np.ndarray] | None = None,
    version: int = 0,
    lr_scale: float = 1.0,
) -> None:
    """One argument of an otherwise good update is bad: a clear error, and nothing is touched."""
    optimizer = build({"name": "momentum"})
    x = floats(8, 1) if x is None else x
    gradient = floats(8, 2) if gradient is None else gradient
    out = np.zeros(8, np.float32) if out is None else out
    state = optimizer.init(8) if state is None else state
    before = [array.tobytes() for array in (x, gradient, out, *state.values())]
    with pytest.raises(OptimizerError, match=match):
        optimizer.update(x, gradient, out, state, version=version, lr_scale=lr_scale)
    assert [array.tobytes() for array in (x, gradient, out, *state.values())] == before


def test_misfits_are_refused_untouched() -> None:
    refused(r"gradient must be float32 of shape \(8,\), got float32 of shape \(7,\)", gradient=floats(7, 2))
    refused(r"out must be float32 of shape \(8,\), got float64", out=np.zeros(8))
    refused(r"x must be float32 of shape \(8,\), got float32 of shape \(2, 4\)", x=floats(8, 1).reshape(2, 4))
    refused(r"keeps the slots \['momentum'\], got \[\]", state={})
    refused("momentum must be float32", state={"momentum": np.zeros(3, np.float32)})
    frozen = floats(8, 2)
    frozen.flags.writeable = False
    refused("gradient must be writable", gradient=frozen)


def test_overlapping_arrays_are_refused() -> None:
    shared = floats(12, 1)
    refused("x and out share memory", x=shared[:8], out=shared[4:])
    refused("gradient and momentum share memory", gradient=shared[:8], state={"momentum": shared[2:10]})


@pytest.mark.parametrize("lr_scale", [-0.5, np.nan, np.inf, 1e300])
def test_bad_scales_are_refused(lr_scale: float) -> None:
    refused("lr_scale must be >= 0", lr_scale=lr_scale)


def test_negative_versions_and_sizes_are_refused() -> None:
    refused("version counts from 0, got -1", version=-1)
    with pytest.raises(OptimizerError, match="0 or more elements, got -1"):
        build({"name": "sgd"}).init(-1)
