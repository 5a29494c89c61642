"""Stale synchronous parallel (Ho et al. 2013, section 3): clocks are bounded, versions are not."""

import random

import pytest

from tests.policies.harness import Table, sit


def test_a_worker_executes_at_most_slack_clocks_ahead() -> None:
    """It has completed c and executes unit c while c - min <= s: the completed gap reaches s + 1, then it blocks."""
    table = sit("ssp", slack=2)
    for _ in range(3):
        table.commit("w0")
    assert table.waits("w0")
    assert table.version == 3
    table.commit("w1")
    assert table.waits("w0")
    table.commit("w2")
    assert not table.waits("w0")


@pytest.mark.parametrize("slack", [0, 1, 4])
def test_the_executing_gap_stays_within_the_slack_on_any_schedule(slack: int) -> None:
    dice = random.Random(slack)
    table, clocks = sit("ssp", workers=6, slack=slack), dict.fromkeys((f"w{n}" for n in range(6)), 0)
    widest = 0
    for _ in range(3000):
        worker = dice.choice(sorted(table.held))
        clocks[worker] += 1
        table.commit(worker)
        widest = max(widest, *(clocks[w] - min(clocks.values()) for w in table.held))
    assert widest == slack


def test_version_staleness_has_no_such_bound() -> None:
    """The reason why a clock gap is never called staleness."""
    table = sit("ssp", workers=8, slack=3)
    dice = random.Random(0)
    for _ in range(3000):
        table.commit(dice.choice(sorted(table.held)))
    assert max(table.staleness) > 2 * 3


def test_it_cannot_beat_a_persistent_straggler() -> None:
    """With whatever slack, in the long run everybody goes at the pace of the slowest."""
    for slack in (0, 4, 16):
        table, done = sit("ssp", workers=3, slack=slack), {"w0": 0, "w1": 0, "w2": 0}
        for step in range(300):
            for worker in ("w0", "w1", "w2") if step % 2 else ("w0", "w1"):
                if worker in table.held:
                    done[worker] += 1
                    table.commit(worker)
        assert done["w2"] == 150
        assert done["w0"] <= 150 + slack + 1


def test_a_newcomer_starts_at_the_clock_of_the_slowest() -> None:
    """Otherwise everybody would wait until it has caught up."""
    table = sit("ssp", workers=2, slack=1)
    for _ in range(5):
        table.commit("w0")
        table.commit("w1")
    table.join("w2")
    table.ready("w2")
    table.commit("w0")
    assert not table.waits("w0")
    table.commit("w0")
    assert table.waits("w0")


@pytest.mark.parametrize("go", [Table.leave, Table.done])
def test_the_slowest_holds_nobody_once_it_is_gone(go: object) -> None:
    table = sit("ssp", workers=2, slack=0)
    table.commit("w0")
    assert table.waits("w0")
    if go is Table.done:
        table.abandon("w1")
        table.done("w1")
    else:
        table.leave("w1")
    assert not table.waits("w0")


def test_abandoned_work_does_not_advance_the_clock() -> None:
    table = sit("ssp", workers=2, slack=0)
    table.commit("w0")
    table.abandon("w1")
    table.ready("w1")
    assert table.waits("w0")
    table.commit("w1")
    assert not table.waits("w0")
