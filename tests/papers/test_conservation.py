"""Conservation of staleness, as exact whole numbers.

An update makes every other worker's work one version older; a push makes its worker young again. So
after T updates by n workers, staleness applied, lost and in flight add up to (n - 1) T when nobody
waits, (n - K) T under K-async, and 0 behind a barrier, for any times whatever. Mean staleness is its
average: n - 1 for async SGD, (n - 1) / K, (n - K) / K.
"""

import pytest

from tests.papers.race import Draw, Race, exponential, jittered, pareto, shifted, slow_last, total
from tests.promises import promise

pytestmark = pytest.mark.nightly

P = 8
DRAWS: list[Draw] = [exponential, shifted, pareto, slow_last(10.0, exponential)]


def grown(race: Race) -> int:
    return total(race.staleness) + race.in_flight


@promise("What is dropped or cancelled takes its age along, exactly (Conservation).")
@pytest.mark.parametrize("draw", DRAWS, ids=["exponential", "shifted", "pareto", "10 x slower"])
@pytest.mark.parametrize(
    ("name", "knobs"),
    [
        ("k-batch-sync", {"aggregate": 4}),
        ("rennala", {"aggregate": 4}),
        ("ringmaster", {"threshold": 6}),
        ("ringmaster", {"threshold": 6, "stops": True}),
        ("bounded", {"aggregate": 4, "max_staleness": 3}),
    ],
)
def test_what_is_dropped_or_cancelled_takes_its_age_along(
    name: str, knobs: dict[str, object], draw: Draw
) -> None:
    race = Race(name, knobs, P, draw).until(800)
    assert grown(race) + total(race.dropped) + total(race.cancelled) == (P - 1) * race.version
    assert race.dropped or race.cancelled


@promise("A straggler moves the largest staleness and not the mean (Conservation).")
def test_a_slow_worker_changes_the_largest_staleness_and_not_the_mean() -> None:
    fair, unfair = (Race("async", {}, P, draw).until(6000) for draw in (DRAWS[0], DRAWS[3]))
    assert fair.mean_staleness == pytest.approx(P - 1, rel=0.01)
    assert unfair.mean_staleness == pytest.approx(P - 1, rel=0.03)
    assert max(unfair.staleness) > 3 * max(fair.staleness)


@promise("N-softsync: n (P - 1) / P on average, never above 2 n (Zhang et al. 2016).")
@pytest.mark.parametrize("n", [1, 15, 30])
def test_staleness_of_n_softsync_is_about_n_and_never_above_twice_n(n: int) -> None:
    """Zhang et al. 2016: 30 learners of nearly equal speed; n (30 - 1) / 30 on average."""
    race = Race("softsync", {"n": n}, 30, jittered).until(200 * n)
    assert race.mean_staleness == pytest.approx(n * 29 / 30, rel=0.02)
    assert max(race.staleness) <= 2 * n


@promise("Ringmaster: at most R - 1 (Maranjyan et al. 2025).")
@pytest.mark.parametrize("threshold", [1, 2, 6])
@pytest.mark.parametrize("stops", [False, True])
def test_ringmaster_applies_nothing_older_than_its_threshold(threshold: int, stops: bool) -> None:
    """Maranjyan et al. 2025: a delay of R or more is ignored; with stops such work does not get finished."""
    race = Race("ringmaster", {"threshold": threshold, "stops": stops}, P).until(4000)
    assert max(race.staleness) == threshold - 1
    if stops:
        assert set(race.cancelled) == {threshold} and not race.dropped
    else:
        assert min(race.dropped) == threshold and not race.cancelled
