"""Staleness-bounded aggregation: K-batch-async (Dutta et al. 2018) with four ways to treat what is too old."""

import random

import pytest

from psserver.policies import build
from tests.policies.harness import PolicyHarness, kinds, start_policy
from tests.promises import promise

HUGE = 10**9


def age(harness: PolicyHarness, versions: int, by: str = "w0") -> None:
    """`by` makes so many updates of its own; K is 1."""
    for _ in range(versions):
        harness.commit(by)


def test_any_k_contributions_make_an_update_and_nobody_idles() -> None:
    """K-batch-async: a fast worker may give two of the K, and works on while the update fills up."""
    harness = start_policy("bounded", aggregate=3, max_staleness=HUGE)
    harness.commit("w0")
    harness.commit("w0")
    assert not harness.waits("w0")
    harness.commit("w1")
    assert harness.authors(harness.updates[0]) == ["w0", "w0", "w1"]
    assert harness.updates[0].scale == 1 / 3


def test_mean_staleness_is_the_number_of_others_over_k() -> None:
    """Conservation: (P - 1)/K in the mean, as exact integers sum tau + ages in flight = (P - 1) T after the first."""
    for aggregate in (1, 2, 4):
        harness = start_policy("bounded", workers=5, aggregate=aggregate, max_staleness=HUGE)
        dice = random.Random(aggregate)
        for _ in range(4000):
            harness.commit(f"w{dice.randrange(5)}")
        if aggregate == 1:
            assert sum(harness.staleness) + harness.in_flight == (5 - 1) * harness.version
        assert sum(harness.staleness) / len(harness.staleness) == pytest.approx((5 - 1) / aggregate, rel=0.05)


def test_drop_keeps_what_is_just_at_the_bound() -> None:
    """Ringmaster (2025) with R = s + 1: max tau <= R - 1."""
    harness = start_policy("bounded", max_staleness=2)
    age(harness, 2)
    harness.commit("w1")
    assert (harness.staleness[-1], harness.dropped) == (2, {})


def test_downweight_is_async_within_the_bound_and_falls_off_beyond() -> None:
    """Mishchenko et al. 2022: M / max(M, tau) with M = s + 1, counted from a fresh one."""
    harness = start_policy("bounded", max_staleness=1, on_stale="downweight")
    factors = {}
    for staleness in range(6):
        age(harness, staleness)
        harness.commit("w1")
        factors[harness.staleness[-1]] = harness.updates[-1].parts[0].factor
    assert factors == {0: 1.0, 1: 1.0, 2: 2 / 3, 3: 2 / 4, 4: 2 / 5, 5: 2 / 6}
    assert harness.dropped == {}


def test_compensate_corrects_only_beyond_the_bound() -> None:
    """DC-ASGD with constant lambda (Zheng et al. 2017): tau = 0 is plain SGD."""
    harness = start_policy("bounded", max_staleness=1, on_stale="compensate", compensation=0.5)
    strengths = {}
    for staleness in range(4):
        age(harness, staleness)
        harness.commit("w1")
        strengths[harness.staleness[-1]] = harness.updates[-1].parts[0].compensation
    assert strengths == {0: 0.0, 1: 0.0, 2: 0.5, 3: 0.5}


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


def test_what_is_left_in_the_buffer_is_applied_when_nothing_more_can_come() -> None:
    harness = start_policy("bounded", workers=2, aggregate=2)
    for worker in ("w0", "w1"):
        harness.commit(worker, again=False)
    harness.ready("w0")
    harness.done("w1")
    harness.commit("w0", again=False)
    assert harness.version == 1
    decisions = harness.done("w0")
    assert [update.scale for update in harness.updates] == [0.5, 1.0]
    assert kinds(decisions) == ["Apply"]


def test_the_last_worker_to_leave_takes_nothing_with_it() -> None:
    harness = start_policy("bounded", workers=2, aggregate=2)
    harness.commit("w0", again=False)
    harness.done("w0")
    assert harness.version == 0
    assert kinds(harness.leave("w1")) == ["Apply"]
