"""Time per update by the distribution of computing times: Dutta et al. 2018, Chen et al. 2016.

`test_builtin_table.py` has exponential times.
"""

import math

import pytest

from tests.papers.race import Draw, harmonic, pareto, ran, shifted
from tests.promises import promise

pytestmark = pytest.mark.nightly

P, K = 8, 4


def order_statistic(k: int, draw: Draw) -> float:
    """Return E[X_(k:P)]."""
    if draw is pareto:
        # Pareto(2, 1): G(p+1) G(p-k+1/2) / (G(p-k+1) G(p+1/2)).
        logs = (math.lgamma(P + 1), math.lgamma(P - k + 0.5), -math.lgamma(P - k + 1), -math.lgamma(P + 0.5))
        return math.exp(sum(logs))
    return harmonic(P) - harmonic(P - k) + 1.0


@promise("A barrier takes Delta + H_P when shifted; the greatest of P for Pareto (Dutta et al. 2018).")
@promise("K-sync takes the K-th order statistic (Dutta et al. 2018, lemma 1).")
@promise("K-batch-async takes K E[X] / P, whatever the distribution (Dutta et al. 2018, lemma 4).")
@pytest.mark.parametrize("draw", [shifted, pareto])
def test_each_rule_takes_what_its_law_says(draw: Draw) -> None:
    """Of Pareto times chance moves the mean more: their variance is infinite."""
    # Both have mean 2.
    expected = {
        "sync": order_statistic(P, draw),
        "k-sync": order_statistic(K, draw),
        "k-batch-async": 2 * K / P,
    }
    for name, seconds in expected.items():
        knobs: dict[str, object] = {} if name == "sync" else {"aggregate": K}
        race = ran(name, 8000, draw, **knobs)
        assert race.time_per_update == pytest.approx(seconds, rel=0.05 if draw is pareto else 0.02), name


@promise(
    "K-async takes less time than K-sync where used workers are sooner done (Dutta et al. 2018, lemma 5)."
)
def test_k_async_beats_k_sync_for_shifted_times() -> None:
    race = ran("k-async", 8000, shifted, aggregate=K)
    assert race.time_per_update == pytest.approx(1.24, rel=0.02)
    assert race.time_per_update < 0.8 * order_statistic(K, shifted)


@promise("4 backups of 100 save 40 % of the time (Chen et al. 2016).")
def test_four_backups_of_a_hundred_save_two_fifths_of_the_time() -> None:
    """Chen et al. 2016: (H_100 - H_4) / H_100 = 0.598 for exponential times."""
    race = ran("sync", 400, workers=100, backup=4)
    assert race.time_per_update / harmonic(100) == pytest.approx(0.598, rel=0.02)
