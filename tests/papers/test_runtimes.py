"""Time per update by the distribution of computing times: Dutta et al. 2018, Chen et al. 2016."""

import math

import pytest

from tests.papers.race import Draw, exponential, harmonic, pareto, ran, shifted
from tests.promises import promise
from tests.repetitions import usually

pytestmark = pytest.mark.nightly

P, K = 8, 4


def mean_of_kth(k: int, p: int, draw: Draw) -> float:
    """E[X_(k:p)] for p independent times."""
    if draw is pareto:
        # Pareto(2, 1): G(p+1) G(p-k+1/2) / (G(p-k+1) G(p+1/2)).
        logs = (math.lgamma(p + 1), math.lgamma(p - k + 0.5), -math.lgamma(p - k + 1), -math.lgamma(p + 0.5))
        return math.exp(sum(logs))
    return harmonic(p) - harmonic(p - k) + (1.0 if draw is shifted else 0.0)


def mean(draw: Draw) -> float:
    return 1.0 if draw is exponential else 2.0


DRAWS = pytest.mark.parametrize("draw", [exponential, shifted, pareto])


@promise(
    "A barrier takes H_P times the mean for exponential times; Delta + H_P when shifted; the greatest of P for"
    " Pareto (Dutta et al. 2018)."
)
@DRAWS
def test_a_barrier_takes_the_longest_of_all_times(draw: Draw) -> None:
    """Of Pareto times chance moves the mean more: their variance is infinite."""
    race = ran("sync", 8000, draw)
    assert race.time_per_update == pytest.approx(
        mean_of_kth(P, P, draw), rel=0.05 if draw is pareto else 0.02
    )


@promise("K-sync takes the K-th order statistic (Dutta et al. 2018, lemma 1).")
@DRAWS
def test_k_sync_takes_the_kth_order_statistic(draw: Draw) -> None:
    """Dutta et al. 2018, lemma 1. 0.6345, 1.6345 and 1.3924 at P = 8, K = 4."""
    expected = mean_of_kth(K, P, draw)
    known: dict[Draw, float] = {exponential: 0.6345, shifted: 1.6345, pareto: 1.3924}
    assert expected == pytest.approx(known[draw], abs=1e-4)
    race = ran("k-sync", 8000, draw, aggregate=K)
    assert race.time_per_update == pytest.approx(expected, rel=0.02)


@promise("K-batch-async takes K E[X] / P, whatever the distribution (Dutta et al. 2018, lemma 4).")
@pytest.mark.parametrize("draw", usually([shifted, pareto], soak=[exponential]))
def test_k_batch_async_takes_a_share_of_the_mean_whatever_the_distribution(draw: Draw) -> None:
    """Dutta et al. 2018, lemma 4: K E[X] / P exactly. 0.5, 1 and 1."""
    race = ran("k-batch-async", 8000, draw, aggregate=K)
    # A Pareto mean of so few is off by more: its variance is infinite.
    assert race.time_per_update == pytest.approx(K * mean(draw) / P, rel=0.03 if draw is pareto else 0.02)


@promise(
    "K-async takes at most as long as K-sync, and as long for exponential times (Dutta et al. 2018, lemma 5)."
)
def test_k_async_equals_k_sync_for_exponential_times_and_beats_it_for_longer_used_ones() -> None:
    """Dutta et al. 2018, lemma 5: at most E[X_(K:P)] for new-longer-than-used times."""
    race = ran("k-async", 8000, aggregate=K)
    assert race.time_per_update == pytest.approx(mean_of_kth(K, P, exponential), rel=0.02)
    race = ran("k-async", 8000, shifted, aggregate=K)
    assert race.time_per_update == pytest.approx(1.24, rel=0.02)
    assert race.time_per_update < 0.8 * mean_of_kth(K, P, shifted)


@promise(
    "Async is P E[max] / E[X] times as fast as sync; 'P log P' is only the limit (Dutta et al. 2018, theorem "
    "1)."
)
@pytest.mark.parametrize(
    ("draw", "ratio", "tolerance"),
    usually([(exponential, 21.74, 0.02), (shifted, 14.87, 0.02)], soak=[(pareto, 20.37, 0.05)]),
)
def test_async_is_faster_than_sync_by_p_times_the_longest_over_the_mean(
    draw: Draw, ratio: float, tolerance: float
) -> None:
    """Dutta et al. 2018, theorem 1. For exponential times that is P H_P; P log P is only its limit."""
    assert P * mean_of_kth(P, P, draw) / mean(draw) == pytest.approx(ratio, abs=0.01)
    sync = ran("sync", 8000, draw)
    concurrent = ran("async", 40000, draw)
    assert sync.time_per_update / concurrent.time_per_update == pytest.approx(ratio, rel=tolerance)


@promise("4 backups of 100 save 40 % of the time (Chen et al. 2016).")
@pytest.mark.parametrize(
    ("name", "knobs"), usually([("sync", {"backup": 4})], soak=[("k-sync", {"aggregate": 96})])
)
def test_four_backups_of_a_hundred_save_two_fifths_of_the_time(name: str, knobs: dict[str, object]) -> None:
    """Chen et al. 2016: (H_100 - H_4) / H_100 = 0.598 for exponential times."""
    race = ran(name, 400, workers=100, **knobs)
    expected = (harmonic(100) - harmonic(4)) / harmonic(100)
    assert expected == pytest.approx(0.598, abs=0.001)
    assert race.time_per_update / harmonic(100) == pytest.approx(expected, rel=0.02)


def test_the_late_drop_of_k_sync_is_slower_than_its_cancel() -> None:
    """The same updates; but who was late starts late into the next one."""
    dropping = ran("k-sync", 3000, aggregate=K, late="drop")
    assert dropping.time_per_update > 1.2 * mean_of_kth(K, P, exponential)
    assert set(dropping.staleness) == {0}
    assert set(dropping.sizes) == {K}
    assert dropping.dropped.total() > 0 and not dropping.cancelled
