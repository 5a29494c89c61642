"""A run ends whatever a member does not do: every wait for one that lives has a name and a limit."""

import pytest

from pslab.verify.harness import CoordinatorHarness, granted
from psserver.coordinator.status import report
from pswire.decisions import entries
from tests.sentences import Recorder

TIMEOUT = 9.0  # worker_timeout of the harness


def note(harness: CoordinatorHarness) -> str:
    return report(harness.coordinator, harness.now).note


def left(harness: CoordinatorHarness) -> list[tuple[str, str]]:
    return [(entry.worker, entry.reason) for entry in harness.entries(entries.Leave)]


def finished(workers: int = 2) -> CoordinatorHarness:
    """All are done; the job has stopped; nobody has left."""
    harness = CoordinatorHarness(workers=workers).starts()
    for rank in range(workers):
        harness.commits(f"w{rank}", ready=False)
        harness.done(f"w{rank}")
    assert harness.stopped
    return harness


def test_a_member_that_stays_after_the_stop_is_not_waited_for(sentences: Recorder) -> None:
    harness = finished()
    assert "waiting for w1 to leave (since 0.0 s, at most 54 s)" in note(harness)
    harness.leaves("w0")
    harness.passes(53.9)
    assert not harness.coordinator.over
    assert note(harness).endswith("waiting for w1 to leave (since 53.9 s, at most 54 s)")
    harness.passes(0.2)
    assert harness.coordinator.over
    sentences.check(*left(harness)[-1])
    assert harness.verdict().ok


def test_the_evaluator_has_longer_but_not_for_ever() -> None:
    harness = finished()
    harness.leaves("w1")
    harness.passes(500.0)
    assert not harness.coordinator.over and "w0 to evaluate the last version and leave" in note(harness)
    harness.passes(50.0)
    assert harness.coordinator.over


def test_joins_without_a_session_hold_up_no_end(sentences: Recorder) -> None:
    """One a second, each under a new name, while the last worker finishes."""
    harness = CoordinatorHarness(workers=1).starts()
    for number in range(5):
        harness.take(harness.coordinator.join(f"stray{number}", f"s{number}", None, harness.now)[1])
        harness.passes(1.0)
    harness.commits("w0", ready=False)
    harness.done("w0")
    assert harness.stopped.startswith("done: ")
    sentences.check(harness.stopped)
    harness.leaves("w0")
    harness.passes(TIMEOUT / 3 + 0.1)
    assert harness.coordinator.over


def test_joins_without_a_session_are_no_arrivals(sentences: Recorder) -> None:
    harness = CoordinatorHarness(workers=2)
    harness.joins("w0")
    for number in range(3):
        harness.take(harness.coordinator.join(f"stray{number}", f"s{number}", None, harness.now)[1])
        harness.passes(TIMEOUT)
    sentences.check(note(harness))
    harness.ready("w0")
    harness.commits("w0")
    assert not harness.coordinator.started, "it waits for a second worker"


def test_joins_without_a_session_keep_no_deserted_job_alive(sentences: Recorder) -> None:
    harness = CoordinatorHarness(workers=1, terms={"idle_timeout": 30.0})
    for number in range(40):
        if harness.stopped:
            break
        harness.take(harness.coordinator.join(f"stray{number}", f"s{number}", None, harness.now)[1])
        harness.passes(1.0)
    assert harness.stopped.startswith("abandoned: ")
    sentences.check(harness.stopped)


def test_one_that_comes_back_to_finish_is_waited_for_between_join_and_session() -> None:
    harness = CoordinatorHarness(workers=2).starts()
    harness.leaves("w1", "killed")
    harness.commits("w0", ready=False)
    harness.done("w0")
    harness.passes(1.0)
    harness.take(harness.coordinator.join("w1", "B", 1, harness.now)[1])
    harness.passes(1.0)
    assert not harness.stopped
    harness.connects("w1", "B")
    harness.passes(2 * TIMEOUT)
    assert not harness.stopped, "it is here and not done"


def test_a_grant_to_initialise_passes_on() -> None:
    harness = CoordinatorHarness(workers=2)
    harness.gathers()
    harness.ready("w0", "w1")
    assert "waiting for w0 to bring the initial values (since 0.0 s, at most 270 s)" in note(harness)
    harness.passes(271.0)
    assert left(harness) == [("w0", "did not bring the initial values within 270 s")]
    (grant,) = [entry for entry in harness.entries(entries.Initialise) if entry.worker == "w1"]
    harness.commits("w1", grant.ticket)
    assert harness.coordinator.initialised
    assert harness.verdict().ok


def test_a_silent_member_holds_up_neither_start_nor_end() -> None:
    harness = CoordinatorHarness(workers=2, terms={"idle_timeout": 100.0})
    harness.gathers()
    harness.ready("w0")
    harness.commits("w0")
    harness.passes(50.0)
    assert "waiting for w1 to ask for work (since 50.0 s, at most 100 s)" in note(harness)
    harness.passes(50.1)
    assert harness.coordinator.started
    harness.joins("w2", "C")
    harness.commits("w0", ready=False)
    harness.done("w0")
    harness.passes(99.0)
    assert not harness.stopped and "waiting for w2 to ask for work" in note(harness)
    harness.passes(1.1)
    harness.passes(TIMEOUT)
    assert harness.stopped.startswith("done")


def test_a_long_pause_of_one_that_nobody_waits_for_is_its_own() -> None:
    """An evaluation between two epochs, say."""
    harness = CoordinatorHarness("async", workers=2, terms={"idle_timeout": 100.0}).starts()
    harness.commits("w0", ready=False)
    harness.passes(1000.0)
    assert not left(harness)


# Tickets


@pytest.mark.parametrize(("policy", "given_up"), [("sync", True), ("async", False)])
def test_a_ticket_that_others_wait_for_may_take_twenty_usual_steps(policy: str, given_up: bool) -> None:
    harness = CoordinatorHarness(policy, workers=2).starts()
    for _ in range(30):
        harness.passes(10.0)
        harness.commits("w0")
        harness.commits("w1")
    harness.passes(10.0)
    harness.commits("w0")
    harness.passes(100.0)
    if given_up:
        assert "waiting for w1 to commit ticket" in note(harness)
    outputs = harness.passes(100.0)
    assert bool(left(harness)) == given_up
    if given_up:
        assert left(harness)[0][0] == "w1" and "within" in left(harness)[0][1]
        assert granted(outputs), "the barrier shrinks"
        again = harness.joins("w1", "A")
        assert again.incarnation == 1, "it may come back"
    assert harness.verdict().ok


def test_short_steps_do_not_make_the_limit_short() -> None:
    harness = CoordinatorHarness("sync", workers=2).starts()
    for _ in range(30):
        harness.passes(0.001)
        harness.commits("w0")
        harness.commits("w1")
    harness.commits("w0")
    harness.passes(6 * TIMEOUT - 0.1)
    assert not left(harness)
    harness.passes(0.2)
    assert left(harness)


def test_the_first_steps_have_no_limit() -> None:
    """Nobody knows yet how long a step takes: a worker may compile for minutes."""
    harness = CoordinatorHarness("sync", workers=2).starts()
    harness.passes(10000.0)
    assert not left(harness)


def test_a_limit_that_is_said_holds_under_any_policy() -> None:
    harness = CoordinatorHarness("async", workers=2, terms={"ticket_timeout": 5.0}).starts()
    harness.passes(4.9)
    harness.commits("w0")
    harness.passes(0.2)
    assert left(harness) == [("w1", f"did not commit ticket {3} within 5 s")]
    never = CoordinatorHarness("sync", workers=2, terms={"ticket_timeout": 0.0}).starts()
    never.commits("w0")
    never.passes(1e6)
    assert not left(never)
