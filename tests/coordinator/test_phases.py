"""A job whose workers stay: where all are done it rests, goes on with those who join anew, and ends without them."""

import pytest

from pslab.verify.harness import CoordinatorHarness, granted, notices
from psserver.coordinator.status import report
from psserver.coordinator.work.units import WorkTerms
from psserver.policies import names
from pswire import protocol
from pswire.decisions import entries
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
    assert harness.coordinator.over
    assert not harness.verdict().violations


def test_the_only_worker_takes_its_own_place_without_ending_the_job() -> None:
    harness = staying(workers=1)
    finish(harness, "w0")
    member, _ = harness.coordinator.join("w0", "B", 0, harness.now, stays=True)
    # Between Join and session time passes.
    harness.passes(0.5)
    assert harness.stopped == ""
    harness.connects("w0", "B")
    assert granted(harness.ready("w0")) and member.incarnation == 1


def test_a_worker_that_leaves_between_phases_is_waited_for_no_longer() -> None:
    harness = staying(workers=3)
    finish(harness, "w0", "w1", "w2")
    harness.joins("w0", "B", stays=True)
    harness.ready("w0")
    harness.leaves("w1")
    assert granted(harness.leaves("w2")), "the next phase begins with the one that is left"


def test_one_that_neither_goes_on_nor_leaves_is_given_up(sentences: Recorder) -> None:
    harness = staying(idle_timeout=600.0)
    finish(harness, "w0", "w1")
    harness.joins("w0", "B", stays=True)
    harness.ready("w0")
    (wait,) = harness.coordinator.waits(harness.now)
    sentences.check(*(wait.member.worker, wait.what))
    assert granted(harness.passes(600.0))
    # It may take part all the same, later.
    harness.joins("w1", "B", stays=True)
    assert granted(harness.ready("w1"))


def test_a_reason_ends_the_phase_for_all_and_not_the_job() -> None:
    harness = staying()
    harness.commits("w0", ready=False)
    outputs = harness.done("w0", ends="a callback")
    assert [stop.reason for stop in notices(outputs, protocol.Stop)] == ["w0 ended the job: a callback"] * 2
    assert len(notices(outputs, protocol.Cancel)) == 1 and harness.holds("w1") is None
    # It hears of its commit's fate, and says again that it is done: nothing follows from it.
    assert not notices(harness.done("w1"), protocol.Stop) and harness.stopped == ""


def test_who_was_away_at_the_end_of_a_phase_hears_of_it() -> None:
    harness = staying()
    finish(harness, "w0")
    harness.commits("w1", ready=False)
    harness.disconnects("w0")
    finish(harness, "w1")
    assert [stop.version for stop in notices(harness.connects("w0"), protocol.Stop)] == [harness.version]


def test_each_phase_deals_work_units_of_its_own() -> None:
    harness = CoordinatorHarness("async", workers=1)
    for session in ("A", "B"):
        member, outputs = harness.coordinator.join("w0", session, 0, harness.now, stays=True)
        harness.take(outputs)
        for _ in range(2):  # said again, it changes nothing
            harness.take(harness.coordinator.declare_work(WorkTerms(2, 1, 1), harness.now))
        harness.connects("w0", session)
        harness.ready("w0")
        if not member.incarnation:
            harness.commits("w0")
        harness.commits("w0")
        assert notices(harness.commits("w0"), protocol.Stop)
    assert [(g.epoch, g.unit) for g in harness.entries(entries.Grant)] == [(0, 0), (0, 1)] * 2
    assert harness.stopped == "" and not harness.verdict().violations


def test_a_phase_that_is_over_is_saved() -> None:
    harness = staying(checkpoint_versions=100)
    finish(harness, "w0", "w1")
    assert harness.saved is not None and harness.saved.version == harness.version
    harness.servers_crash()
    for worker in ("w0", "w1"):
        harness.joins(worker, "B", stays=True)
    assert granted(harness.ready("w0", "w1"))


def test_one_that_left_in_the_first_phase_does_not_keep_the_job_from_its_end(sentences: Recorder) -> None:
    harness = staying(worker_timeout=9.0)
    harness.leaves("w1", "ValueError in the script")
    finish(harness, "w0")
    stops = notices(harness.passes(9.0), protocol.Stop)
    sentences.check(*[stop.reason for stop in stops])
    harness.leaves("w0")
    harness.passes(0.1)
    assert harness.stopped.startswith("done: ")
    sentences.check(harness.stopped)


def test_one_that_is_lost_behind_its_last_batch_is_not_done_in_the_next_phase() -> None:
    """Between its last commit and its `done`: the process that takes its place is told which phase it is."""
    harness = staying(worker_timeout=9.0)
    harness.commits("w0", ready=False)
    harness.disconnects("w0")
    finish(harness, "w1")
    # It has its time to come back; then the phase ends without it.
    harness.passes(9.0)
    assert harness.passes(9.0) and harness.coordinator.resting
    harness.joins("w1", "B", stays=True)
    assert granted(harness.ready("w1"))
    harness.joins("w0", "B", stays=True)
    tally = harness.coordinator.roster.tally("w0")
    assert (harness.coordinator.phase, tally.next_batch, tally.phase_batch) == (1, 1, 1)
    assert granted(harness.ready("w0"))
    assert not finish(harness, "w1") and len(finish(harness, "w0")) == 2
    assert harness.coordinator.phase == 2


def test_one_that_comes_and_goes_between_phases_has_left_nothing_undone(sentences: Recorder) -> None:
    harness = staying(allow_missing=False)
    finish(harness, "w0", "w1")
    harness.joins("w0", "B", stays=True)
    harness.leaves("w0")
    harness.leaves("w1")
    harness.passes(0.1)
    assert harness.stopped.startswith("done: ")
    sentences.check(harness.stopped)


def test_a_vote_that_ends_a_phase_waits_for_nobody_who_was_lost() -> None:
    harness = staying(workers=3)
    harness.leaves("w2", "lost")
    harness.commits("w0", ready=False)
    assert len(notices(harness.done("w0", ends="a callback"), protocol.Stop)) == 2
    # What was on its way is no mistake.
    assert notices(harness.ready("w1"), protocol.Stop)


def test_between_phases_servers_go_back_and_nobody_is_in_a_phase_twice() -> None:
    harness = staying(checkpoint_versions=100)
    finish(harness, "w0", "w1")
    harness.servers_crash(expected=("w0", "w1"))
    # The processes that were there: one has begun the next phase, one has not yet.
    harness.joins("w0", "B", stays=True)
    harness.joins("w1", "A", stays=True)
    assert not granted(harness.ready("w0")) and harness.coordinator.resting
    assert harness.coordinator.phase == 1
    harness.joins("w1", "B", stays=True)
    assert granted(harness.ready("w1"))


def test_new_scripts_on_a_job_that_rests_go_by_their_batches() -> None:
    harness = staying(checkpoint_versions=100)
    finish(harness, "w0", "w1")
    harness.servers_crash()
    harness.joins("w0", "B", stays=True)
    assert (harness.coordinator.phase, harness.coordinator.roster.tally("w0").phase_batch) == (0, 0)
