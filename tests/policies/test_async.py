"""Downpour's rule (Dean et al. 2012): every gradient is applied as it comes."""

import random

from tests.policies.harness import kinds, start_policy


def test_every_commit_is_a_version() -> None:
    harness = start_policy("async")
    for worker in ("w0", "w0", "w1", "w0", "w2"):
        assert kinds(harness.commit(worker))[0] == "Apply"
    assert (harness.version, harness.staleness) == (5, [0, 0, 2, 1, 4])
    assert all(update.scale == 1.0 and len(update.parts) == 1 for update in harness.updates)


def test_nobody_ever_waits() -> None:
    harness = start_policy("async")
    harness.commit("w0")
    assert len(harness.held) == 3


def test_equal_speed_means_constant_staleness() -> None:
    harness = start_policy("async", workers=4)
    for turn in range(40):
        harness.commit(f"w{turn % 4}")
    assert harness.staleness == [0, 1, 2] + [3] * 37


def test_staleness_is_conserved_whatever_the_speeds() -> None:
    """Exact integers: each update ages every other holder by one, a commit resets its worker. (n - 1) T in all."""
    dice = random.Random(1)
    harness = start_policy("async", workers=8)
    for _ in range(5000):
        harness.commit(f"w{min(dice.randrange(8), dice.randrange(8), dice.randrange(8))}")
    assert sum(harness.staleness) + harness.in_flight == 7 * harness.version
    assert max(harness.staleness) > 3 * 7


def test_staleness_is_conserved_when_tickets_are_given_up() -> None:
    dice = random.Random(2)
    harness, expected = start_policy("async", workers=5), 0
    for _ in range(3000):
        worker = f"w{dice.randrange(5)}"
        if dice.random() < 0.1:
            harness.abandon(worker)
            harness.ready(worker)
        else:
            expected += len(harness.held) - 1
            harness.commit(worker)
    assert sum(harness.staleness) + harness.in_flight + harness.given_up == expected
