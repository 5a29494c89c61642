"""The protocol of replicas keeps its promises: in every state, in random histories, in directed schedules."""

from collections.abc import Callable

import pytest

from psserver.replication import copying
from tests.repetitions import FIRST_SEED, repetitions, usually
from tests.replication.__main__ import randomly
from tests.replication.directed import SCHEDULES
from tests.replication.explore import Bounds, Explorer

# Bounds, and how many states lie within.
USUAL = [
    (Bounds(2, 1, 0), 8_272),
    (Bounds(1, 1, 1, servers=2), 2_970),
    (Bounds(1, 2, 0, forgets=False), 31_337),
]
SOAK = [(Bounds(2, 1, 1, forgets=False), 96_995)]


@pytest.mark.parametrize(("bounds", "states"), usually(USUAL, SOAK), ids=str)
@pytest.mark.timeout(3600)
def test_no_state_breaks_a_promise(bounds: Bounds, states: int) -> None:
    explorer = Explorer(bounds)
    assert explorer.run()
    # A change of the protocol changes the number: then write it anew, here and in tests/replication/README.md.
    assert len(explorer.seen) == states


@pytest.mark.parametrize("close", [copying.CLOSE, 0], ids="close={}".format)
@pytest.mark.timeout(3600)
def test_random_histories_end_well(monkeypatch: pytest.MonkeyPatch, close: int) -> None:
    """Also where a learner is never near enough to get new items before it has executed what it has."""
    monkeypatch.setattr(copying, "CLOSE", close)
    histories = repetitions(40, soak=2000)
    counts = randomly(FIRST_SEED, histories)
    if histories >= 40:
        # They are not idle, and few end without a copy.
        assert all(counts[what] > 0 for what in ("takeover", "crash", "copy", "difference", "reset"))
        assert counts["lost"] < histories / 2


# Histories that a soak found. A primary that was sealed, or had started again, was taken for one that leads; a
# candidate gave up at a majority that did not know of the newest configuration, though one more server did.
FOUND = [249015415752, 316857261629, 316857000872]


@pytest.mark.parametrize("seed", FOUND)
def test_a_history_that_was_found_ends_well(seed: int) -> None:
    assert randomly(seed, 1)


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda each: each.__name__)
def test_directed_schedule_ends_well(schedule: Callable[[bool], None], torn: bool) -> None:
    schedule(torn)
