"""The bound of staleness. `test_reference` has the rest of `bounded`."""

import random

import pytest

from psserver.policies import build
from tests.policies.harness import start_policy
from tests.promises import promise


@pytest.mark.parametrize("name", ["sync", "async", "ssp", "bounded"])
def test_only_compensate_asks_the_shards_to_keep_old_versions(name: str) -> None:
    assert not build(name, {}, 2).tensors.keep_bases
    assert build("bounded", {"on_stale": "compensate"}, 2).tensors.keep_bases


@promise("A bound in version space is reached and never passed; block drops nothing (Bounded delay).")
@pytest.mark.parametrize("bound", [0, 1, 3])
@pytest.mark.parametrize("on_stale", ["drop", "block"])
def test_the_bound_is_reached_and_never_passed(on_stale: str, bound: int) -> None:
    """A bound in version space: max tau = s exactly; block drops nothing, drop holds nobody up."""
    harness = start_policy("bounded", workers=8, aggregate=2, max_staleness=bound, on_stale=on_stale)
    dice = random.Random(bound)
    for _ in range(2000):
        harness.commit(dice.choice(sorted(harness.held)))
        if on_stale == "drop":
            assert len(harness.held) == 8
    assert max(harness.staleness) == bound
    assert (harness.dropped == {}) == (on_stale == "block")
