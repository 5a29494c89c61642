"""Aggregators against numpy, scipy and a reference; ties, blocks, extremes; and how a shard uses them."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats

from psserver.policies import TensorParts
from psserver.shard import Apply, Fold, Hold, Seal, Shard, ShardError
from psserver.shard.aggregators import (
    BLOCK,
    NETWORK,
    SORTED,
    Aggregator,
    KrumAggregator,
    MedianAggregator,
    TrimmedMeanAggregator,
)
from pswire.model.plan import Plan
from tests.repetitions import repetitions
from tests.sentences import Recorder
from tests.shard.reference import install, numbers, same_bits, shards_of, stage

MEDIAN = TensorParts(aggregator="median", knobs={"fewest": 1})
TRIMMED = TensorParts(aggregator="trimmed-mean", knobs={"trim": 1})
KRUM = TensorParts(aggregator="krum", knobs={"byzantine": 1, "select": 2})

# Small whole numbers, so that ties are everywhere, and zeros of both signs.
tied = st.sampled_from([-2.0, -1.0, -0.0, 0.0, 1.0, 2.0, 0.5])
wild = st.floats(-(2.0**100), 2.0**100, width=32)


def rows(least: int) -> st.SearchStrategy[np.ndarray]:
    """K rows of up to 9 numbers, K from `least` to 9."""
    shapes = st.tuples(st.integers(least, 9), st.integers(1, 9))
    return shapes.flatmap(
        lambda shape: st.one_of(*(arrays.arrays(np.float32, shape, elements=e) for e in (tied, wild)))
    )


def reduced(aggregator: Aggregator, gradients: Sequence[np.ndarray]) -> np.ndarray:
    own = [np.array(gradient, np.float32) for gradient in gradients]
    aggregator.reduce(own)
    return own[0]


# Coordinate by coordinate


@given(rows(1))
def test_the_median_is_numpys(gradients: np.ndarray) -> None:
    np.testing.assert_array_equal(reduced(MedianAggregator(), gradients), np.median(gradients, axis=0))


@given(rows(1), st.integers(0, 4))
@example(np.array([[2.368e-42], [0], [0]], np.float32), 0)
def test_the_trimmed_mean_is_that_of_the_sorted_rest(gradients: np.ndarray, trim: int) -> None:
    if 2 * trim >= len(gradients):
        with pytest.raises(ValueError, match=f"more than {2 * trim} gradients, got {len(gradients)}"):
            reduced(TrimmedMeanAggregator(trim), gradients)
        return
    rest = np.sort(gradients.astype(np.float64), axis=0)[trim : len(gradients) - trim]
    ours = reduced(TrimmedMeanAggregator(trim), gradients)
    # The last step rounds: to the nearest subnormal number where the mean is one.
    atol = 1e-6 * np.abs(rest).max() + np.finfo(np.float32).smallest_subnormal
    np.testing.assert_allclose(ours, rest.mean(axis=0), rtol=1e-5, atol=atol)


@pytest.mark.parametrize("trim", [0, 1, 2, 3])
def test_the_trimmed_mean_is_scipys(trim: int) -> None:
    gradients = np.random.default_rng(trim).standard_normal((8, 1000)).astype(np.float32)
    theirs = stats.trim_mean(gradients.astype(np.float64), trim / 8, axis=0)
    np.testing.assert_allclose(reduced(TrimmedMeanAggregator(trim), gradients), theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 3, NETWORK - 1, NETWORK, NETWORK + 1, 40])
def test_any_number_of_workers(count: int) -> None:
    """Few rows are put in order by comparing neighbours, many by sorting."""
    gradients = np.random.default_rng(count).integers(-9, 9, (count, 500)).astype(np.float32)
    np.testing.assert_array_equal(reduced(MedianAggregator(), gradients), np.median(gradients, axis=0))
    trim = (count - 1) // 3
    kept = np.sort(gradients, axis=0)[trim : count - trim]
    np.testing.assert_allclose(
        reduced(TrimmedMeanAggregator(trim), gradients), kept.mean(axis=0), rtol=1e-5, atol=1e-6
    )


def test_a_trim_of_all_but_the_middle_is_the_median() -> None:
    gradients = np.random.default_rng(3).standard_normal((7, 1000)).astype(np.float32)
    assert same_bits(reduced(TrimmedMeanAggregator(3), gradients), reduced(MedianAggregator(), gradients))


@given(rows(1), st.randoms(use_true_random=False))
@settings(max_examples=repetitions(50, soak=2000))
def test_the_order_of_workers_does_not_change_a_bit(gradients: np.ndarray, dice) -> None:  # type: ignore[no-untyped-def]
    shuffled = list(gradients)
    dice.shuffle(shuffled)
    trim = (len(gradients) - 1) // 2
    for aggregator in (MedianAggregator(), TrimmedMeanAggregator(trim)):
        assert same_bits(reduced(aggregator, gradients), reduced(aggregator, shuffled))


@pytest.mark.parametrize(
    "aggregator", [MedianAggregator(), TrimmedMeanAggregator(1)], ids=["median", "trimmed-mean"]
)
@pytest.mark.parametrize("size", [0, 1, SORTED // 5, SORTED // 5 + 1, 100_003])
def test_blocks_do_not_change_a_bit(aggregator: Aggregator, size: int) -> None:
    gradients = np.random.default_rng(size).standard_normal((5, size)).astype(np.float32)
    whole = reduced(aggregator, gradients)
    cut = size // 3
    pieces = [reduced(aggregator, gradients[:, part]) for part in (slice(cut), slice(cut, None))]
    assert same_bits(whole, np.concatenate(pieces))


@pytest.mark.parametrize(
    "aggregator", [MedianAggregator(), TrimmedMeanAggregator(1)], ids=["median", "trimmed-mean"]
)
def test_one_of_any_size_moves_nothing_beyond_the_honest(aggregator: Aggregator) -> None:
    honest = np.random.default_rng(1).standard_normal((4, 500)).astype(np.float32)
    for bad in (3.4e38, -3.4e38):
        found = reduced(aggregator, [*honest, np.full(500, bad)])
        assert ((honest.min(axis=0) <= found) & (found <= honest.max(axis=0))).all()


# Krum


def dumb_scores(gradients: Sequence[np.ndarray], f: int, power: int = 2) -> list[float]:
    """Blanchard et al. 2017, section 3, one number after the other."""
    scores = []
    for i, mine in enumerate(gradients):
        distances = []
        for j, other in enumerate(gradients):
            if i != j:
                square = sum((float(a) - float(b)) ** 2 for a, b in zip(mine, other, strict=True))
                distances.append(square ** (power / 2))
        scores.append(sum(sorted(distances)[: len(gradients) - f - 2]))
    return scores


@given(rows(3), st.integers(0, 3), st.integers(1, 5))
def test_krum_is_its_dumb_twin(gradients: np.ndarray, f: int, select: int) -> None:
    n = len(gradients)
    if n < 2 * f + 3:
        with pytest.raises(ValueError, match=f"at least {2 * f + 3} gradients, got {n}"):
            reduced(KrumAggregator(f, select), gradients)
        return
    chosen = KrumAggregator(f, select).choose(list(gradients))
    scores = dumb_scores(gradients, f)
    assert len(chosen) == len(set(chosen)) == min(select, n - f - 2) and chosen == sorted(chosen)
    worst, best_left = max(scores[i] for i in chosen), min(scores[i] for i in range(n) if i not in chosen)
    # Sums of the same numbers in another order: equal but for rounding.
    assert worst <= best_left * (1 + 1e-9)
    mean = np.mean(gradients[chosen].astype(np.float64), axis=0)
    atol = 1e-6 * np.abs(gradients[chosen]).max() + np.finfo(np.float32).smallest_subnormal
    np.testing.assert_allclose(reduced(KrumAggregator(f, select), gradients), mean, rtol=1e-5, atol=atol)


def test_krum_of_one_is_that_gradient_to_the_bit_and_the_first_at_a_tie() -> None:
    gradients = np.random.default_rng(5).standard_normal((6, 40)).astype(np.float32)
    (chosen,) = KrumAggregator(1, 1).choose(list(gradients))
    assert same_bits(reduced(KrumAggregator(1, 1), gradients), gradients[chosen])
    same = np.ones((5, 3), np.float32)
    assert KrumAggregator(1, 1).choose(list(same)) == [0]
    assert KrumAggregator(1, 2).choose(list(same)) == [0, 1]


def test_krum_over_blocks_sees_the_whole_vector() -> None:
    """The outlier differs in the last coordinate only, far behind the first block."""
    gradients = [np.zeros(BLOCK + 5, np.float32) for _ in range(5)]
    gradients[0][-1] = 100.0
    for number, gradient in enumerate(gradients):
        gradient[number] += 0.1 * number
    assert 0 not in KrumAggregator(1, 2).choose(gradients)


def test_krum_with_fourth_powers_chooses_otherwise() -> None:
    """A known implementation squares the squared distances, and sums what it selects: both are another rule."""
    generator = np.random.default_rng(0)
    differ = 0
    for _ in range(200):
        gradients = generator.standard_normal((7, 3)).astype(np.float32)
        (ours,) = KrumAggregator(1, 1).choose(list(gradients))
        assert ours == int(np.argmin(dumb_scores(gradients, 1)))
        differ += ours != int(np.argmin(dumb_scores(gradients, 1, power=4)))
    assert differ > 10


# In the shard


def an_update(shards: list[Shard], plan: Plan, version: int, payloads: list[list[np.ndarray]]) -> None:
    """One fresh contribution of each of some workers, in one update."""
    first = 100 * version
    for number, payload in enumerate(payloads):
        for shard in shards:
            shard.execute(Hold(first + number, version - 1, worker=f"w{number}"))
        stage(plan, shards, first + number, payload)
        for shard in shards:
            shard.execute(Seal(first + number))
    parts = tuple(Fold(first + number, 1.0) for number in range(len(payloads)))
    for shard in shards:
        shard.execute(Apply(version, 1.0, 1.0, parts))


ORACLES = {
    "median": (MEDIAN, lambda stack: np.median(stack, axis=0)),
    "trimmed-mean": (TRIMMED, lambda stack: np.sort(stack, axis=0)[1:-1].mean(axis=0)),
}


@pytest.mark.parametrize("name", ORACLES)
def test_an_update_is_one_step_on_the_aggregate_and_state_moves_by_it_too(name: str) -> None:
    parts, oracle = ORACLES[name]
    plan, (shard,) = shards_of(1, {"name": "sgd", "learning_rate": 1.0}, tensors=parts)
    install(plan, [shard], numbers(1))
    payloads = [numbers(10 + w) for w in range(4)]
    an_update([shard], plan, 1, payloads)
    new = plan.gather([shard.arena.values(1)])
    for index, (x, spec) in enumerate(zip(numbers(1), plan.variables, strict=True)):
        stack = np.stack([payload[index] for payload in payloads]).astype(np.float64)
        expected = x - oracle(stack) if spec.kind == "trainable" else x + oracle(stack)
        np.testing.assert_allclose(new[index], expected, rtol=1e-5, atol=1e-6)


def test_krum_goes_by_what_is_trained_and_state_moves_by_the_median() -> None:
    """A worker that is chosen for its gradient may have brought any state."""
    plan, (shard,) = shards_of(1, {"name": "sgd", "learning_rate": 1.0}, tensors=KRUM)
    install(plan, [shard], numbers(1))
    near, far = numbers(7), numbers(8)
    payloads = []
    for worker in range(5):
        payload = [array.copy() for array in (far if worker == 3 else near)]
        for index, spec in enumerate(plan.variables):
            if spec.kind == "state":
                payload[index] = np.full(spec.shape, [1.0, 2.0, 3.0, 4.0, 8e6][worker], np.float32)
        payloads.append(payload)
    an_update([shard], plan, 1, payloads)
    for x, g, spec, new in zip(
        numbers(1), near, plan.variables, plan.gather([shard.arena.values(1)]), strict=True
    ):
        expected = x - g if spec.kind == "trainable" else x + 3.0
        np.testing.assert_allclose(new, expected, rtol=1e-5, atol=1e-5)


def test_all_payloads_of_an_update_are_held_and_then_used_again() -> None:
    plan, (shard,) = shards_of(1, tensors=MEDIAN, staging=2)
    install(plan, [shard], numbers(1))
    for version in range(1, 4):
        an_update([shard], plan, version, [numbers(w) for w in range(5)])
        assert shard.staging.held == 0 and shard.staging.peak == 5


def test_a_compensation_without_a_compensator_is_refused(sentences: Recorder) -> None:
    plan, (shard,) = shards_of(1, tensors=MEDIAN)
    install(plan, [shard], numbers(1))
    shard.execute(Hold(2, 0))
    stage(plan, [shard], 2, numbers(2))
    with pytest.raises(ShardError) as refused:
        shard.execute(Apply(1, 1.0, 1.0, (Fold(2, 1.0, 0.5),)))
    sentences.check(refused)
    assert shard.version == 0
