"""Bounds in clocks: SSP (Ho et al. 2013) and DSSP (Zhao et al. 2019), which has none as it was printed."""

import pytest

from tests.papers.race import Draw, Race, exponential, harmonic, slow_last, turns
from tests.promises import promise

pytestmark = pytest.mark.nightly

P = 8


@promise("SSP: executing gap <= s under any schedule (Ho et al. 2013).")
@pytest.mark.parametrize("slack", [0, 1, 3, 16])
@pytest.mark.parametrize(
    "draw",
    [exponential, slow_last(3.0, exponential), turns],
    ids=["exponential", "3 x slower", "constant"],
)
def test_nobody_executes_more_than_slack_clocks_ahead(slack: int, draw: Draw) -> None:
    """Ho et al. 2013, section 3; and the bound is reached wherever speeds differ."""
    race = Race("ssp", {"slack": slack}, P, draw).until(4000)
    assert race.gap <= slack
    if draw is not turns:
        assert race.gap == slack


@promise(
    "Time per clock falls with the slack; a persistent straggler sets the pace all the same (Ho et al. 2013)."
)
@pytest.mark.parametrize(
    ("slack", "seconds"), [(0, harmonic(P)), (1, 1.79), (2, 1.51), (4, 1.29), (8, 1.15), (16, 1.10)]
)
def test_time_per_clock_falls_with_slack(slack: int, seconds: float) -> None:
    """From the barrier's H_P to 1 without a bound; successive clocks depend on each other, hence the tolerance."""
    race = Race("ssp", {"slack": slack}, P).until(24000)
    assert race.time_per_update * P == pytest.approx(seconds, rel=0.03)


@pytest.mark.parametrize("draw", [exponential, slow_last(3.0, turns)], ids=["exponential", "3 x slower"])
def test_dssp_reaches_its_upper_bound_and_holds_it(draw: Draw) -> None:
    assert Race("dssp", {"lower": 3, "upper": 15}, P, draw).until(6000).gap == 15
