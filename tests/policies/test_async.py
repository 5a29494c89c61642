"""Downpour's rule (Dean et al. 2012): every gradient is applied as it comes."""

import random

from tests.policies.harness import kinds, sit


def test_every_commit_is_a_version() -> None:
    table = sit("async")
    for worker in ("w0", "w0", "w1", "w0", "w2"):
        assert kinds(table.commit(worker))[0] == "Apply"
    assert (table.version, table.staleness) == (5, [0, 0, 2, 1, 4])
    assert all(update.scale == 1.0 and len(update.parts) == 1 for update in table.updates)


def test_nobody_ever_waits() -> None:
    table = sit("async")
    table.commit("w0")
    assert len(table.held) == 3


def test_equal_speed_means_constant_staleness() -> None:
    table = sit("async", workers=4)
    for turn in range(40):
        table.commit(f"w{turn % 4}")
    assert table.staleness == [0, 1, 2] + [3] * 37


def test_staleness_is_conserved_whatever_the_speeds() -> None:
    """Exact integers: each update ages every other holder by one, a commit resets its worker. (n - 1) T in all."""
    dice = random.Random(1)
    table = sit("async", workers=8)
    for _ in range(5000):
        table.commit(f"w{min(dice.randrange(8), dice.randrange(8), dice.randrange(8))}")
    assert sum(table.staleness) + table.in_flight == 7 * table.version
    assert max(table.staleness) > 3 * 7


def test_staleness_is_conserved_when_tickets_are_given_up() -> None:
    dice = random.Random(2)
    table, expected = sit("async", workers=5), 0
    for _ in range(3000):
        worker = f"w{dice.randrange(5)}"
        if dice.random() < 0.1:
            table.abandon(worker)
            table.ready(worker)
        else:
            expected += len(table.held) - 1
            table.commit(worker)
    assert sum(table.staleness) + table.in_flight + table.given_up == expected
