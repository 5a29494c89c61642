"""Real servers under --memory-limit 1GiB stay below it whatever is tried, and the honest worker goes on.

All attacks in a table: python -m tests.attack.memory
"""

import sys

import pytest

from tests.attack.memory.__main__ import ATTACKS, MOST, Attack, measure
from tests.repetitions import usually

QUICK = (
    "attachments of one member",
    "joins with large claims",
    "endless pushes of one ticket",
    "versions that nobody reads",
)


@pytest.mark.cluster
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    "attack", usually([a for a in ATTACKS if a.name in QUICK], soak=list(ATTACKS)), ids=lambda a: a.name
)
def test_the_peak_is_below_the_limit(attack: Attack) -> None:
    measured = measure(attack)
    assert measured.before < measured.peak <= MOST, measured
