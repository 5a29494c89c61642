"""A run ends whatever a member does not do: every wait for one that lives has a name and a limit."""

import pytest

from pslab.verify.harness import CoordinatorHarness, granted
from psserver.coordinator.status import report
from psserver.decisions import entries

TIMEOUT = 9.0  # worker_timeout of the harness


def note(harness: CoordinatorHarness) -> str:
    return report(harness.coordinator, harness.now).note


def left(harness: CoordinatorHarness) -> list[tuple[str, str]]:
    return [(entry.worker, entry.reason) for entry in harness.entries(entries.Leave)]


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


def test_a_worker_that_falls_silent_on_a_cancelled_ticket_does_not_hold_the_job() -> None:
    harness = CoordinatorHarness(
        "k-batch-sync", knobs={"aggregate": 1}, workers=2, terms={"ticket_timeout": 5.0}
    ).starts()
    harness.commits("w0")
    harness.done("w0")
    for _ in range(200):
        harness.passes(5.0)
    assert "w1" in [worker for worker, _ in left(harness)]
    assert harness.stopped
