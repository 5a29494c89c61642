"""How a job ends: the data, a number of versions, a signal, nobody left. And when it must not."""

import pytest

from pslab.verify.harness import CoordinatorHarness, notices, refusals
from psserver.coordinator.outputs import JobOver
from pswire import protocol
from pswire.decisions import entries
from tests.promises import promise
from tests.sentences import Recorder


def finishes(harness: CoordinatorHarness, *workers: str) -> None:
    for worker in workers:
        if harness.holds(worker) is not None:
            harness.commits(worker, ready=False)
        harness.done(worker)


def test_when_all_are_done_so_is_the_job(sentences: Recorder) -> None:
    harness = CoordinatorHarness(workers=2).starts()
    finishes(harness, "w0")
    assert harness.stopped == ""
    harness.commits("w1", ready=False)
    outputs = harness.done("w1")
    assert harness.stopped.startswith("done: ")
    sentences.check(harness.stopped)
    stops = notices(outputs, protocol.Stop)
    assert [(s.version, s.success, s.evaluate) for s in stops] == [(2, True, True), (2, True, False)]
    assert all(s.index == harness.log[-1].index for s in stops)


@pytest.mark.parametrize(
    ("policy", "knobs"),
    [
        ("sync", {}),
        ("async", {}),
        ("bounded", {"aggregate": 2}),
        ("bounded", {"aggregate": 2, "max_staleness": 0, "on_stale": "block"}),
        ("ssp", {"slack": 0}),
    ],
)
def test_uneven_data(policy: str, knobs: dict[str, object], sentences: Recorder) -> None:
    """One has 3 batches, the other 11: nothing is lost, nobody waits for who is done."""
    harness = CoordinatorHarness(policy, knobs, workers=2).starts()
    left = {"w0": 3, "w1": 11}
    for _ in range(100):
        for worker in ("w0", "w1"):
            if harness.holds(worker) is not None:
                left[worker] -= 1
                harness.commits(worker, ready=left[worker] > 0)
                if not left[worker]:
                    harness.done(worker)
    assert left == {"w0": 0, "w1": 0}
    assert harness.stopped.startswith("done: ")
    sentences.check(harness.stopped)
    tallies = harness.coordinator.roster.tallies
    assert [(t.committed, t.pending) for t in tallies.values()] == [(3, 0), (11, 0)]
    assert harness.verdict().violations == ()


def test_a_number_of_versions() -> None:
    harness = CoordinatorHarness("bounded", {"aggregate": 2}, workers=2, terms={"versions": 3}).starts()
    for _ in range(3):
        harness.commits("w0")
        harness.commits("w1")
    assert harness.stopped == "versions: version 3 is reached"
    assert (harness.version, harness.coordinator.stopped and harness.coordinator.stopped.success) == (3, True)
    assert harness.verdict().violations == ()


def test_a_stop_closes_the_books() -> None:
    """Open tickets are cancelled, committed ones dropped with a reason; nothing is decided afterwards."""
    harness = CoordinatorHarness("bounded", {"aggregate": 2}, workers=2).starts()
    open_ticket = harness.holds("w1")
    harness.commits("w0", ready=False)
    harness.take(harness.coordinator.stop("stopped by SIGINT", harness.now, success=False, cause="SIGINT"))
    assert harness.kinds[-3:] == ["cancel", "drop", "stop"]
    assert harness.entries(entries.Drop)[-1].reason == "stopped"
    assert harness.coordinator.roster.tally("w0").pending == 0
    size = len(harness.log)
    assert notices(harness.ready("w0"), protocol.Stop)
    assert refusals(harness.commits("w1", open_ticket)) == []
    harness.abandons("w1", open_ticket)
    harness.done("w0")
    harness.passes(1)
    harness.take(harness.coordinator.stop("again", harness.now, success=True, cause="done"))
    assert (len(harness.log), harness.stopped) == (size, "SIGINT: stopped by SIGINT")


def test_only_after_a_success_somebody_evaluates() -> None:
    for success in (True, False):
        harness = CoordinatorHarness(workers=2).starts()
        outputs = harness.take(harness.coordinator.stop("so", harness.now, success=success, cause="server"))
        assert [s.evaluate for s in notices(outputs, protocol.Stop)] == [success, False]


def test_who_is_away_at_the_stop_hears_of_it_on_its_return() -> None:
    harness = CoordinatorHarness(workers=2).starts()
    harness.disconnects("w0")
    outputs = harness.take(harness.coordinator.stop("so", harness.now, success=True, cause="done"))
    assert [(t.worker, t.notice.evaluate) for t in harness.told if isinstance(t.notice, protocol.Stop)] == [
        ("w1", True)
    ]
    assert len(notices(outputs, protocol.Stop)) == 1
    harness.joins("w0")
    (stop,) = notices(harness.connects("w0"), protocol.Stop)
    assert not stop.evaluate


def test_the_work_of_one_who_vanished_is_waited_for_but_not_for_ever(sentences: Recorder) -> None:
    """It may be about to come back and finish its data."""
    harness = CoordinatorHarness(workers=2).starts()
    harness.leaves("w0", "killed")
    finishes(harness, "w1")
    assert harness.stopped == ""
    harness.passes(8.9)
    assert harness.stopped == ""
    harness.passes(0.2)
    assert harness.stopped.startswith("done: ")
    sentences.check(harness.stopped)


def test_one_that_is_gone_for_good_costs_the_others_no_wait_at_the_end(sentences: Recorder) -> None:
    """Its time to come back began with its loss."""
    harness = CoordinatorHarness("async", workers=2).starts()
    harness.leaves("w0", "killed")
    harness.passes(9.1)
    assert harness.stopped == ""
    finishes(harness, "w1")
    assert harness.stopped.startswith("done: ")
    sentences.check(harness.stopped)


def test_it_is_waited_for_as_long_as_its_start_takes(sentences: Recorder) -> None:
    harness = CoordinatorHarness(workers=2)
    harness.passes(30)
    harness.starts()
    harness.leaves("w0", "killed")
    finishes(harness, "w1")
    harness.passes(38.9)
    assert harness.stopped == ""
    harness.passes(0.2)
    assert harness.stopped.startswith("done: ")
    sentences.check(harness.stopped)


@pytest.mark.parametrize("allowed", [True, False])
def test_data_that_were_not_trained_on_make_a_success_only_where_that_is_allowed(allowed: bool) -> None:
    """The end is in order all the same: the last version is saved and evaluated, and a late worker hears of the end."""
    terms = {"allow_missing": allowed, "checkpoint_versions": 1000}
    harness = CoordinatorHarness(workers=2, terms=terms).starts()
    harness.leaves("w0", "killed")
    finishes(harness, "w1")
    harness.passes(9.1)
    stopped = harness.coordinator.stopped
    assert stopped is not None
    assert (stopped.success, stopped.cause, stopped.in_order) == (
        allowed,
        "done" if allowed else "missing",
        True,
    )
    (notice,) = [told.notice for told in harness.told if isinstance(told.notice, protocol.Stop)]
    assert notice.success and notice.evaluate
    assert isinstance(harness.log[-1].entry, entries.Checkpoint)
    with pytest.raises(JobOver):
        harness.joins("w0", "another")


@pytest.mark.parametrize("commits_again", [True, False])
@pytest.mark.parametrize("allowed", [True, False])
def test_batches_that_a_rollback_undid_and_nobody_repeats_are_missing(
    allowed: bool, commits_again: bool
) -> None:
    """w0 has committed batches 0 to 59, of which the newest checkpoint has 2, and goes on behind the one under way."""
    terms = {"allow_missing": allowed, "checkpoint_versions": 2}
    harness = CoordinatorHarness("async", workers=1, terms=terms).starts()
    for batch in range(2):
        harness.commits("w0", batch=batch)
    newest = harness.saved
    for batch in range(2, 60):
        harness.commits("w0", batch=batch)
    harness.saved = newest
    harness.servers_crash()
    harness.joins("w0", used=60)
    harness.ready("w0")
    tally = harness.coordinator.roster.tally("w0")
    if commits_again:
        harness.commits("w0", batch=61)
        # A process that is started anew begins behind what its name has used.
        assert tally.next_batch == 62
    else:
        harness.abandons("w0")
    finishes(harness, "w0")
    assert tally.missed == (59 if commits_again else 58)
    cause = "done" if allowed else "missing"
    reason = f"all workers are done; {tally.missed} batches of w0 were lost with a server or a connection"
    assert harness.stopped == f"{cause}: {reason}"
    assert harness.coordinator.stopped is not None and harness.coordinator.stopped.success == allowed


def test_one_who_comes_back_finishes_its_data_first(sentences: Recorder) -> None:
    harness = CoordinatorHarness(workers=2).starts()
    harness.leaves("w0", "killed")
    finishes(harness, "w1")
    harness.passes(5)
    harness.joins("w0", "B")
    harness.ready("w0")
    harness.passes(50)
    assert harness.stopped == ""
    finishes(harness, "w0")
    assert harness.stopped.startswith("done: ")
    sentences.check(harness.stopped)


def test_done_gives_up_what_is_still_open() -> None:
    harness = CoordinatorHarness("sync", workers=2).starts()
    harness.commits("w1")
    ticket = harness.holds("w0")
    harness.done("w0")
    assert harness.entries(entries.Abandon) == [entries.Abandon("w0", ticket or 0, "done")]
    assert harness.version == 1


def test_nobody_for_too_long(sentences: Recorder) -> None:
    harness = CoordinatorHarness(workers=2, terms={"idle_timeout": 60.0})
    harness.passes(59.9)
    assert harness.stopped == ""
    harness.passes(0.1)
    assert harness.stopped.startswith("abandoned: ")
    sentences.check(harness.stopped)
    assert harness.coordinator.over


def test_idle_time_counts_from_the_last_departure(sentences: Recorder) -> None:
    harness = CoordinatorHarness(workers=2, terms={"idle_timeout": 60.0}).starts()
    harness.passes(100)
    harness.leaves("w0")
    harness.leaves("w1")
    harness.passes(50)
    harness.joins("w0", "B")
    harness.passes(100)
    assert harness.stopped == ""
    harness.leaves("w0")
    harness.passes(60)
    assert harness.stopped.startswith("abandoned: ")
    sentences.check(harness.stopped)


def test_idle_for_ever_when_told_so() -> None:
    harness = CoordinatorHarness(workers=1, terms={"idle_timeout": 0.0})
    harness.passes(1e6)
    assert harness.stopped == ""


def test_nobody_had_any_data(sentences: Recorder) -> None:
    """There is no model and never will be: an end, and not in success."""
    harness = CoordinatorHarness(workers=2)
    harness.gathers()
    harness.done("w0")
    assert harness.stopped == ""
    outputs = harness.done("w1")
    assert harness.stopped.startswith("empty: ")
    sentences.check(harness.stopped)
    assert [s.evaluate for s in notices(outputs, protocol.Stop)] == [False, False]
    assert harness.verdict().violations == ()


def test_a_late_worker_may_have_the_data() -> None:
    harness = CoordinatorHarness(workers=2)
    harness.gathers("w0")
    harness.done("w0")
    harness.joins("w1")
    harness.ready("w1")
    harness.commits("w1")
    assert harness.coordinator.started


# A worker that dies again and again


def test_the_end_waits_once_for_a_worker_that_dies_again_and_again(sentences: Recorder) -> None:
    """Restarts that commit nothing share one `worker_timeout`, which begins at the first death."""
    harness = CoordinatorHarness(workers=2, terms={"worker_timeout": 9.0}).starts()
    finishes(harness, "w0")
    lives = 0
    while not harness.stopped and lives < 50:
        harness.leaves("w1", "killed")
        harness.passes(2.0)
        if not harness.stopped:
            lives += 1
            harness.joins("w1", session=f"life {lives}")
            harness.ready("w1")
    assert harness.stopped.startswith("done: ")
    sentences.check(harness.stopped)
    assert lives == 4


def test_a_commit_begins_the_wait_anew() -> None:
    harness = CoordinatorHarness(workers=2, terms={"worker_timeout": 9.0}).starts()
    finishes(harness, "w0")
    for life in range(10):
        harness.leaves("w1", "killed")
        harness.passes(8.0)
        harness.joins("w1", session=f"life {life}")
        harness.ready("w1")
        harness.commits("w1")
    assert not harness.stopped


# A worker that ends the job for all


def test_one_worker_ends_the_job_under_a_mean(sentences: Recorder) -> None:
    harness = CoordinatorHarness(workers=3).starts()
    harness.commits("w0")
    harness.done("w2", ends="enough is known")
    assert harness.stopped.startswith("done: ")
    sentences.check(harness.stopped)


@promise("Under a robust policy no worker alone ends the job, the first one neither.")
@pytest.mark.parametrize(
    ("policy", "knobs", "workers", "needed"),
    [
        ("median", {}, 5, 3),
        ("trimmed-mean", {"trim": 1}, 5, 2),
        ("krum", {"byzantine": 2}, 7, 3),
    ],
)
def test_under_a_robust_policy_dishonest_workers_cannot_end_the_job(
    policy: str, knobs: dict[str, object], workers: int, needed: int, sentences: Recorder
) -> None:
    names = [f"w{rank}" for rank in range(workers)]

    def trained() -> CoordinatorHarness:
        harness = CoordinatorHarness(policy, knobs, workers).starts()
        for name in names:
            harness.commits(name)
        assert harness.version == 1
        return harness

    for order in (names[::-1], names):
        harness = trained()
        for name in order[: needed - 1]:
            harness.done(name, ends="I say so")
            assert not harness.stopped
        harness.done(order[needed - 1], ends="I say so")
        assert harness.stopped.startswith("done: ")
        sentences.check(harness.stopped)


def test_a_job_that_is_ended_before_its_first_version_has_not_succeeded() -> None:
    harness = CoordinatorHarness("sync", workers=2).starts()
    harness.done("w1", ends="I say so")
    stopped = harness.coordinator.stopped
    assert stopped is not None and (stopped.success, stopped.cause) == (False, "empty")
