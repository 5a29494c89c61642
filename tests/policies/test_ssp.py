"""Stale synchronous parallel (Ho et al. 2013, section 3): clocks are bounded, versions are not."""

import random

import pytest

from tests.policies.harness import PolicyHarness, start_policy


def test_a_worker_executes_at_most_slack_clocks_ahead() -> None:
    """It has completed c and executes unit c while c - min <= s: the completed gap reaches s + 1, then it blocks."""
    harness = start_policy("ssp", slack=2)
    for _ in range(3):
        harness.commit("w0")
    assert harness.waits("w0")
    assert harness.version == 3
    harness.commit("w1")
    assert harness.waits("w0")
    harness.commit("w2")
    assert not harness.waits("w0")


@pytest.mark.parametrize("slack", [0, 1, 4])
def test_the_executing_gap_stays_within_the_slack_on_any_schedule(slack: int) -> None:
    dice = random.Random(slack)
    harness = start_policy("ssp", workers=6, slack=slack)
    clocks = {f"w{n}": 0 for n in range(6)}
    widest = 0
    for _ in range(3000):
        worker = dice.choice(sorted(harness.held))
        clocks[worker] += 1
        harness.commit(worker)
        widest = max(widest, *(clocks[w] - min(clocks.values()) for w in harness.held))
    assert widest == slack


def test_a_newcomer_starts_at_the_clock_of_the_slowest() -> None:
    """Otherwise everybody would wait until it has caught up."""
    harness = start_policy("ssp", workers=2, slack=1)
    for _ in range(5):
        harness.commit("w0")
        harness.commit("w1")
    harness.join("w2")
    harness.ready("w2")
    harness.commit("w0")
    assert not harness.waits("w0")
    harness.commit("w0")
    assert harness.waits("w0")


def test_a_worker_comes_back_at_its_own_clock() -> None:
    """Otherwise each restart of a fast worker would give it `slack` more."""
    harness = start_policy("ssp", workers=2, slack=2)
    for _ in range(5):
        for _ in range(3):
            if "w0" in harness.held:
                harness.commit("w0")
        assert harness.waits("w0") and harness.version == 3
        harness.leave("w0")
        harness.join("w0")
        harness.ready("w0")


def test_clocks_start_anew_when_all_are_done() -> None:
    """Another phase begins: a worker that had more data in this one does not wait in the next."""
    harness = start_policy("ssp", workers=2, slack=1)
    harness.commit("w0")
    harness.commit("w0", again=False)
    for worker in ("w1", "w0"):
        if worker in harness.held:
            harness.abandon(worker)
        harness.done(worker)
    for worker in ("w0", "w1"):
        harness.leave(worker)
        harness.join(worker)
    harness.ready("w0", "w1")
    harness.commit("w0")
    assert not harness.waits("w0")


@pytest.mark.parametrize("go", [PolicyHarness.leave, PolicyHarness.done])
def test_the_slowest_holds_nobody_once_it_is_gone(go: object) -> None:
    harness = start_policy("ssp", workers=2, slack=0)
    harness.commit("w0")
    assert harness.waits("w0")
    if go is PolicyHarness.done:
        harness.abandon("w1")
        harness.done("w1")
    else:
        harness.leave("w1")
    assert not harness.waits("w0")
