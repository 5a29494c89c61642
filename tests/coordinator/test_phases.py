"""A job whose workers stay: where all are done it rests, goes on with those who join anew, and ends without them."""

import pytest

from pslab.verify.harness import CoordinatorHarness, granted, notices
from psserver.coordinator import inputs
from psserver.coordinator.status import report
from psserver.coordinator.units import WorkTerms
from psserver.decisions import entries
from psserver.policies import names
from pswire import protocol
from tests.sentences import Recorder

WORKERS = ("w0", "w1", "w2")


def staying(policy: str = "async", workers: int = 2, **terms: object) -> CoordinatorHarness:
    """The first phase has started."""
    harness = CoordinatorHarness(policy, workers=workers, terms=terms)
    for rank in range(workers):
        harness.joins(f"w{rank}", stays=True)
    harness.ready("w0")
    harness.commits("w0", ready=False)
    harness.ready(*(f"w{rank}" for rank in range(workers)))
    return harness


def finish(harness: CoordinatorHarness, *workers: str) -> list[protocol.Stop]:
    found = []
    for worker in workers:
        if harness.holds(worker) is not None:
            harness.commits(worker, ready=False)
        found += notices(harness.done(worker), protocol.Stop)
    return found


@pytest.mark.parametrize("policy", names())
def test_under_every_policy_a_second_phase_goes_on_from_the_first(policy: str, sentences: Recorder) -> None:
    harness = staying(policy, workers=3)
    stops = finish(harness, *WORKERS)
    assert [(stop.success, stop.version, stop.evaluate) for stop in stops] == [
        (True, harness.version, False)
    ] * 3
    assert harness.stopped == "" and report(harness.coordinator, harness.now).phase == "between phases"
    before = harness.version
    for worker in WORKERS:
        harness.joins(worker, "B", stays=True)
        outputs = harness.ready(worker)
        assert bool(granted(outputs)) == (worker == WORKERS[-1]), "all begin together"
    assert [start.workers for start in harness.entries(entries.Start)] == [3, 3]
    assert all(stop.version > before for stop in finish(harness, *WORKERS))
    for worker in WORKERS:
        assert harness.stopped == ""
        harness.leaves(worker)
    harness.passes(0.1)
    assert harness.stopped.startswith("done: ")
    sentences.check(harness.stopped)
    assert harness.coordinator.state.over
    assert not harness.verdict().violations


def test_the_only_worker_takes_its_own_place_without_ending_the_job() -> None:
    harness = staying(workers=1)
    finish(harness, "w0")
    member = harness.join("w0", "B", 0, stays=True)
    # Between Join and session time passes.
    harness.passes(0.5)
    assert harness.stopped == ""
    harness.connects("w0", "B")
    assert granted(harness.ready("w0")) and member.incarnation == 1


def test_each_phase_deals_work_units_of_its_own() -> None:
    harness = CoordinatorHarness("async", workers=1)
    for session in ("A", "B"):
        member = harness.join("w0", session, 0, stays=True)
        for _ in range(2):  # said again, it changes nothing
            harness.take(harness.coordinator.take(inputs.WorkDeclared(WorkTerms(2, 1, 1)), harness.now))
        harness.connects("w0", session)
        harness.ready("w0")
        if not member.incarnation:
            harness.commits("w0")
        harness.commits("w0")
        assert notices(harness.commits("w0"), protocol.Stop)
    assert [(g.epoch, g.unit) for g in harness.entries(entries.Grant)] == [(0, 0), (0, 1)] * 2
    assert harness.stopped == "" and not harness.verdict().violations


def test_one_that_is_lost_behind_its_last_batch_is_not_done_in_the_next_phase() -> None:
    """Between its last commit and its `done`: the process that takes its place is told which phase it is."""
    harness = staying(worker_timeout=9.0)
    harness.commits("w0", ready=False)
    harness.disconnects("w0")
    finish(harness, "w1")
    # It has its time to come back; then the phase ends without it.
    harness.passes(9.0)
    assert harness.passes(9.0) and harness.coordinator.state.resting
    harness.joins("w1", "B", stays=True)
    assert granted(harness.ready("w1"))
    harness.joins("w0", "B", stays=True)
    tally = harness.coordinator.state.roster.tally("w0")
    assert (harness.coordinator.state.phase, tally.next_batch, tally.phase_batch) == (1, 1, 1)
    assert granted(harness.ready("w0"))
    assert not finish(harness, "w1") and len(finish(harness, "w0")) == 2
    assert harness.coordinator.state.phase == 2


def test_between_phases_servers_go_back_and_nobody_is_in_a_phase_twice() -> None:
    harness = staying(checkpoint_versions=100)
    finish(harness, "w0", "w1")
    harness.servers_crash(expected=("w0", "w1"))
    # The processes that were there: one has begun the next phase, one has not yet.
    harness.joins("w0", "B", stays=True)
    harness.joins("w1", "A", stays=True)
    assert not granted(harness.ready("w0")) and harness.coordinator.state.resting
    assert harness.coordinator.state.phase == 1
    harness.joins("w1", "B", stays=True)
    assert granted(harness.ready("w1"))


def test_new_scripts_on_a_job_that_rests_go_by_their_batches() -> None:
    harness = staying(checkpoint_versions=100)
    finish(harness, "w0", "w1")
    harness.servers_crash()
    harness.joins("w0", "B", stays=True)
    assert (harness.coordinator.state.phase, harness.coordinator.state.roster.tally("w0").phase_batch) == (
        0,
        0,
    )
