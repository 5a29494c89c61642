"""Real servers under --memory-limit 1GiB stay below it whatever is tried, and the honest worker goes on.

All attacks in a table: python -m tests.attack.memory
"""

import sys

import pytest

from tests.attack.memory.__main__ import ATTACKS, MOST, Attack, measure
from tests.repetitions import usually

DAILY = ("joins with large claims", "endless pushes of one ticket")
NIGHTLY = ("attachments of one member", "versions that nobody reads")
QUICK = [
    pytest.param(attack, marks=pytest.mark.nightly if attack.name in NIGHTLY else ())
    for attack in ATTACKS
    if attack.name in DAILY + NIGHTLY
]


@pytest.mark.cluster
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("attack", usually(QUICK, soak=list(ATTACKS)), ids=lambda a: a.name)
def test_the_peak_is_below_the_limit(attack: Attack) -> None:
    measured = measure(attack)
    assert measured.before < measured.peak <= MOST, measured
