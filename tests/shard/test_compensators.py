"""Compensators: the papers' formulas in float64, compiled code against numpy, any number of servers, identities."""

from collections.abc import Iterator

import numpy as np
import pytest

from psserver.fast import Backend
from psserver.optimizers import build
from psserver.policies import TensorParts
from psserver.policies import build as build_policy
from psserver.shard import Apply, Fold, Hold, Shard
from psserver.shard.compensators import AdaptiveTaylor, Compensator, Gap, GapAwareCompensator, Memory, Taylor
from pswire.model.plan import Plan
from tests.promises import promise
from tests.shard.reference import MOMENTUM, install, numbers, same_bits, shards_of, stage

SIZE = 40_001
PUSHES = 12
KINDS: dict[str, Compensator] = {
    "taylor": Taylor(),
    "adaptive-taylor": AdaptiveTaylor(0.95, 1e-7),
    "gap-aware": GapAwareCompensator(0.999, 1e-8),
}
DECLARED = {name: build_policy(name, {}, 4).tensors for name in ("dc-asgd", "dc-asgd-a", "gap-aware")}


def floats(seed: int, size: int = SIZE, spread: float = 1.0) -> np.ndarray:
    return (spread * np.random.default_rng(seed).standard_normal(size)).astype(np.float32)


def gaps(step: bool = False) -> Iterator[tuple[np.ndarray, Gap]]:
    """Gradients with what they find: weights that have moved by some hundredths, and a rate that falls, then rises."""
    for push in range(PUSHES):
        base = floats(1000 + push)
        rate = np.float32(0.1 / (1 + push) if push < 8 else 0.3)
        yield (
            floats(push, spread=0.2),
            Gap(base + floats(2000 + push, spread=0.05), base, rate, floats(3000 + push) if step else None),
        )


@pytest.fixture(scope="module", params=[1, 3], ids=["1 thread", "3 threads"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    with Backend(request.param, grain=1000) as backend:
        yield backend


def corrected(
    compensator: Compensator, strength: float, backend: Backend, step: bool = False
) -> tuple[list[np.ndarray], Memory]:
    memory, results = compensator.init(SIZE), []
    for gradient, gap in gaps(step):
        compensator.correct(gradient, gap, np.float32(strength), memory, backend)
        results.append(gradient)
    return results, memory


# Formulas


@promise("The correctors' rules as printed (The same).")
def test_adaptive_taylor_is_the_printed_formula(backend: Backend) -> None:
    """Zheng et al. 2017: MS <- m MS + (1 - m) g g; g + lambda_0 / sqrt(MS + eps) g g (x - x_bak)."""
    ours, memory = corrected(KINDS["adaptive-taylor"], 2.0, backend)
    square = np.zeros(SIZE)
    for mine, (gradient, gap) in zip(ours, gaps(), strict=True):
        g, moved = gradient.astype(np.float64), gap.now.astype(np.float64) - gap.base
        square = 0.95 * square + 0.05 * g * g
        theirs = g + 2.0 / np.sqrt(square + 1e-7) * g * g * moved
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=1e-6)
        assert np.abs(theirs - g).max() > 0.01, "the correction is there"
    np.testing.assert_allclose(memory["mean_square"], square, rtol=1e-5)


@pytest.mark.parametrize("step", [False, True], ids=["of gradients", "of steps"])
def test_gap_aware_is_the_printed_formula(backend: Backend, step: bool) -> None:
    """Barkai et al. 2020: C = eta_max (sqrt(RA / (1 - G^t)) + 1e-8); g / (1 + |x - x_b| / C).

    With a step u = eta v the size of an average step is taken as it was, with the rate of its time.
    """
    ours, _ = corrected(KINDS["gap-aware"], 1.0, backend, step)
    average, largest = np.zeros(SIZE), 0.0
    for t, (mine, (gradient, gap)) in enumerate(zip(ours, gaps(step), strict=True), start=1):
        g, moved = gradient.astype(np.float64), np.abs(gap.now.astype(np.float64) - gap.base)
        largest = max(largest, float(gap.rate))
        u = g if gap.step is None else gap.step.astype(np.float64)
        average = 0.999 * average + 0.001 * u * u
        root = np.sqrt(average / (1 - 0.999**t))
        c = largest * (root + 1e-8) if gap.step is None else root + largest * 1e-8
        np.testing.assert_allclose(mine, g / (1 + moved / c), rtol=2e-4, atol=1e-9)


def test_a_compensator_that_divides_by_the_square_root_of_gradients_alone_is_another() -> None:
    """The mean square holds the gradient itself: without memory (m = 0) lambda_t g g is lambda_0 |g|."""
    gradient, gap = next(gaps())
    ours, moved = gradient.copy(), gap.now - gap.base
    AdaptiveTaylor(0.0, 1e-12).correct(
        ours, gap, np.float32(2.0), {"mean_square": np.zeros(SIZE, np.float32)}
    )
    np.testing.assert_allclose(ours, gradient + 2 * np.abs(gradient) * moved, rtol=1e-4, atol=1e-6)


def in_numpy(name: str, strength: np.float32, g: np.ndarray, gap: Gap, memory: Memory) -> np.ndarray:
    """Return the corrected gradient, with each operation rounded on its own; advance the memory."""
    one, moved = np.float32(1), gap.now - gap.base
    if name == "taylor":
        return g + moved * g * g * strength
    kept, gain = (
        np.float32(each) for each in ((0.95, 1 - 0.95) if name != "gap-aware" else (0.999, 1 - 0.999))
    )
    u = g if gap.step is None or name != "gap-aware" else gap.step
    mean = memory["mean_square"] * kept + u * u * gain
    memory["mean_square"] = mean = np.where(mean < np.finfo(np.float32).tiny, np.float32(0), mean)
    if name == "adaptive-taylor":
        return g + moved * g * g * strength / np.sqrt(mean + np.float32(1e-7))
    memory["weight"] = memory["weight"] * kept + gain
    memory["rate_max"] = np.maximum(memory["rate_max"], gap.rate)
    unit = one if gap.step is not None else memory["rate_max"][0]
    size = np.sqrt(mean / memory["weight"][0]) * unit + memory["rate_max"][0] * np.float32(1e-8)
    return g / (np.abs(moved) * strength / size + one)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("step", [False, True])
def test_compiled_code_gives_the_bits_of_numpy(backend: Backend, name: str, step: bool) -> None:
    ours, memory = corrected(KINDS[name], 0.7, backend, step)
    other = KINDS[name].init(SIZE)
    theirs = [in_numpy(name, np.float32(0.7), gradient, gap, other) for gradient, gap in gaps(step)]
    assert all(same_bits(a, b) for a, b in zip(ours, theirs, strict=True))
    assert memory.keys() == other.keys()
    assert all(same_bits(memory[key], other[key]) for key in memory)


# Identities


@pytest.mark.parametrize("name", KINDS)
def test_without_a_gap_a_gradient_stays_as_it_is(backend: Backend, name: str) -> None:
    memory = KINDS[name].init(SIZE)
    for seed in range(3):
        gradient, x = floats(seed), floats(9)
        KINDS[name].correct(gradient, Gap(x, x.copy(), np.float32(0.1)), np.float32(1), memory, backend)
        assert same_bits(gradient, floats(seed))


def test_a_gap_of_one_usual_step_halves_a_gradient() -> None:
    gradient, base = np.full(5, 0.5, np.float32), np.zeros(5, np.float32)
    now = np.float32([0.05, -0.05, 0.1, 0.15, 0])  # the usual step: 0.1 * 0.5
    GapAwareCompensator(0.999, 1e-8).correct(
        gradient, Gap(now, base, np.float32(0.1)), np.float32(1), GapAwareCompensator(0.999, 1e-8).init(5)
    )
    np.testing.assert_allclose(gradient, [0.25, 0.25, 0.5 / 3, 0.125, 0.5], rtol=1e-5)


def test_the_first_gradients_count_in_full_in_the_mean() -> None:
    """Bias correction: a constant gradient gives its own size as the mean, from the first on."""
    memory = GapAwareCompensator(0.999, 1e-8).init(1)
    for _ in range(1000):
        gradient, x = np.full(1, 3.0, np.float32), np.zeros(1, np.float32)
        GapAwareCompensator(0.999, 1e-8).correct(gradient, Gap(x, x, np.float32(0.1)), np.float32(1), memory)
        assert abs(np.sqrt(memory["mean_square"][0] / memory["weight"][0]) - 3) < 1e-4


def test_nothing_is_divided_by_zero() -> None:
    """A dead weight (gradient 0), a warm-up that starts from rate 0, and sizes whose square is no normal number."""
    for gradient, rate in ((0.0, 0.1), (1.0, 0.0), (1e-25, 1e-3)):
        for name, compensator in KINDS.items():
            g, x = np.full(3, gradient, np.float32), np.zeros(3, np.float32)
            memory = compensator.init(3)
            for _ in range(3):
                compensator.correct(g, Gap(x, x, np.float32(rate)), np.float32(1), memory)
            assert np.array_equal(g, np.full(3, gradient, np.float32)), name
            assert memory.get("mean_square", x).max() in (0, pytest.approx(gradient**2, rel=1))


# In the shard


def run(plan: Plan, shards: list[Shard], strength: float) -> None:
    """Three workers in turn: each pushes what it started from two updates ago."""
    install(plan, shards, numbers(1))
    held = [2, 3, 4]
    for ticket in held:
        for shard in shards:
            shard.execute(Hold(ticket, 0))
    for version in range(1, 25):
        mine = held.pop(0)
        held.append(mine + 3)
        stage(plan, shards, mine, numbers(100 + version))
        for shard in shards:
            shard.execute(Apply(version, 1.0, 1.0, (Fold(mine, 1.0, strength),)))
            shard.execute(Hold(mine + 3, version))


def final(servers: int, parts: TensorParts, strength: float, config: dict[str, object]) -> list[np.ndarray]:
    plan, shards = shards_of(servers, config, tensors=parts, versions=8)
    run(plan, shards, strength)
    return plan.gather([shard.arena.values(shard.version) for shard in shards])


SGD = {"name": "sgd", "learning_rate": 0.05}


@pytest.mark.parametrize("name", DECLARED)
def test_a_strength_of_0_is_async_to_the_bit(name: str) -> None:
    ours, plain = final(2, DECLARED[name], 0.0, MOMENTUM), final(2, TensorParts(), 0.0, MOMENTUM)
    assert all(same_bits(a, b) for a, b in zip(ours, plain, strict=True))


def test_with_momentum_the_gap_is_measured_in_steps_that_were_taken() -> None:
    """Steps of momentum are longer than gradients times the rate: a gap counts for less than by gradients alone."""
    plan, (shard,) = shards_of(1, MOMENTUM, tensors=DECLARED["gap-aware"])
    run(plan, [shard], 1.0)
    assert shard.optimizer.rule.step_slot == "momentum"
    assert shard.state().arrays["slot/momentum"].any()
    assert shards_of(1, SGD)[1][0].optimizer.last_step({}) is None
    assert build({"name": "rmsprop", "momentum": 0.5}).rule.step_slot == "momentum"


def test_one_previous_weight_for_all_is_not_dc_asgd() -> None:
    """MXNet's DCASGD keeps the weights before the last update, by any worker: it corrects for one update only.

    Three workers in turn, f = x^2 / 2, so that the gradient is x_base. Ours corrects over the worker's own gap.
    """
    strength, rate = 0.5, np.float32(0.1)

    def descend(shared: bool) -> list[float]:
        x, previous, held = np.float32(1), np.float32(1), [np.float32(1)] * 3
        path = []
        for push in range(12):
            g = held[push % 3]
            base = previous if shared else held[push % 3]
            gradient = np.array([g], np.float32)
            Taylor().correct(gradient, Gap(np.array([x]), np.array([base])), np.float32(strength), {})
            previous, x = x, x - rate * gradient[0]
            held[push % 3] = x
            path.append(float(x))
        return path

    ours, theirs = descend(shared=False), descend(shared=True)
    assert ours[:2] == theirs[:2] and ours[2:] != theirs[2:]
