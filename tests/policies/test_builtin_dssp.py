"""DSSP (Zhao et al. 2019): the gate and its controller, on times of which one can think."""

import pytest

from psserver.policies import Commit, build
from tests.policies.harness import PolicyHarness
from tests.sentences import Recorder


class Clocked(PolicyHarness):
    """A policy to which every commit comes with its time."""

    now = 0.0

    def commits(self, worker: str, at: float) -> None:
        ticket = self.held.pop(worker)
        self.tell(Commit(worker, ticket, 8, 0.5, 1.0, at))
        self.ready(worker)


def dssp(lower: int, upper: int, *, workers: int = 2) -> Clocked:
    harness = Clocked(build("dssp", {"lower": lower, "upper": upper}, workers))
    everyone = [f"w{rank}" for rank in range(workers)]
    harness.join(*everyone)
    harness.ready(*everyone)
    return harness


def test_dssp_without_times_is_ssp(sentences: Recorder) -> None:
    harness = dssp(1, 5)
    harness.commits("w0", 1.0)
    harness.commits("w0", 2.0)
    assert harness.waits("w0")
    sentences.check(harness.policy.explain("w0").event)


def test_dssp_lets_the_fastest_do_what_makes_it_wait_least() -> None:
    """w1 takes 10 s and commits next at 30; w0 takes 1 s and is at 25: five further units end at 30."""
    harness = dssp(1, 9)
    harness.commits("w1", 10.0)
    harness.commits("w1", 20.0)
    for at in (22.0, 23.0, 24.0):
        harness.commits("w0", at)
    harness.commits("w0", 25.0)
    assert not harness.waits("w0")
    for unit in range(5):
        assert not harness.waits("w0"), unit
        harness.commits("w0", 26.0 + unit)
    # All used up, at clock 9 against 2; the next choice is made anew.
    assert harness.version == 11


def test_dssp_never_exceeds_its_upper_slack() -> None:
    harness = dssp(1, 3)
    harness.commits("w1", 100.0)
    harness.commits("w1", 200.0)
    at = 200.0
    while not harness.waits("w0") and harness.version < 50:
        at += 1.0
        harness.commits("w0", at)
    # w0 waits once it is 4 clocks ahead: it executes none beyond 3.
    assert harness.version == 2 + 2 + 4


@pytest.mark.parametrize("leaves", [False, True])
def test_dssp_forgets_the_times_of_one_that_left(leaves: bool) -> None:
    """Who comes back starts without a past: its first commit says nothing of its pace."""
    harness = dssp(0, 9)
    for at in (1.0, 11.0):
        harness.commits("w0", at)
        harness.commits("w1", at + 9.0)
    if leaves:
        harness.leave("w0")
        harness.join("w0")
        harness.ready("w0")
    harness.commits("w0", 21.0)
    assert harness.waits("w0") == leaves
