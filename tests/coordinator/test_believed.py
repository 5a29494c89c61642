"""What makes work of all vanish is held against the job's terms, and what is left over is named."""

import pytest

from pslab.verify.harness import CoordinatorHarness, notices
from psserver.coordinator.units import WorkTerms
from psserver.decisions import entries
from psserver.service.job.reports import ProgressReports
from pswire import protocol
from tests.promises import promise
from tests.sentences import Recorder

ROBUST = (("trimmed-mean", {"trim": 1}), ("krum", {"byzantine": 1}), ("median", {}))


def job(
    policy: str, workers: int, *, knobs: dict[str, object] | None = None, **work: int
) -> CoordinatorHarness:
    terms = {"allow_missing": False}
    found = CoordinatorHarness(policy, knobs or {}, workers, terms, now=0.0, work=WorkTerms(**work))
    return found.starts()


def parts(harness: CoordinatorHarness) -> set[tuple[int | None, int | None, int | None]]:
    """The parts that were applied."""
    grants = {grant.ticket: (grant.epoch, grant.unit, grant.part) for grant in harness.entries(entries.Grant)}
    return {grants[part.ticket] for apply in harness.entries(entries.Apply) for part in apply.parts}


def cause(harness: CoordinatorHarness) -> str:
    assert harness.coordinator.state.stopped is not None
    return harness.coordinator.state.stopped.cause


# Against the job's terms


@pytest.mark.parametrize("policy", ["async", "sync"])
def test_a_unit_of_known_length_does_not_end_earlier(policy: str, sentences: Recorder) -> None:
    harness = job(policy, 2, units=2, batches=5)
    ticket = harness.holds("w0")
    sent = notices(harness.commits("w0", unit_ends=True), protocol.Refusal)
    sentences.check(sent[0].message)
    assert harness.holds("w0") == ticket and not harness.entries(entries.Commit)
    sent = notices(harness.abandons("w0", unit_ends=True), protocol.Refusal)
    sentences.check(sent[0].message)
    while not harness.stopped:
        for worker in ("w0", "w1"):
            if harness.holds(worker) is not None:
                harness.commits(worker)
    assert len(parts(harness)) == 10 and cause(harness) == "done"


def test_the_last_unit_may_have_fewer_batches_and_no_other_one() -> None:
    harness = job("async", 2, units=2, epochs=2, batches=3, last=1)
    while not harness.stopped:
        for worker in ("w0", "w1"):
            if harness.holds(worker) is not None:
                harness.commits(worker)
    assert parts(harness) == {(e, u, p) for e in (0, 1) for u, p in ((0, 0), (0, 1), (0, 2), (1, 0))}
    assert harness.verdict().ok and cause(harness) == "done"


# What the end says


@promise("Where fewer parts are left than one update needs, they are named, and the job succeeds.")
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(("policy", "knobs"), ROBUST)
def test_the_rest_of_the_data_that_makes_no_update_is_named_and_the_job_succeeds(
    policy: str, knobs: dict[str, object], apart: bool, sentences: Recorder
) -> None:
    harness = job(policy, 5, knobs=knobs, units=31, batches=1, epochs=2, apart=apart)
    while not harness.stopped:
        for number in range(5):
            if not harness.stopped and harness.holds(f"w{number}") is not None:
                harness.commits(f"w{number}")
    assert cause(harness) == "done" and harness.verdict().ok
    left = ProgressReports().missing(harness.coordinator)["parts"]
    assert len(parts(harness)) == 62 - left and left == (2 if apart else 62 % 5)
    sentences.check(harness.stopped)


def test_more_than_the_rest_of_an_update_is_no_success() -> None:
    """A worker is gone early."""
    harness = job("krum", 5, knobs={"byzantine": 1}, units=31, batches=1)
    turns = 0
    while not harness.stopped:
        for number in range(5):
            worker = f"w{number}"
            if harness.stopped or harness.holds(worker) is None:
                continue
            harness.commits(worker)
            turns += 1
            if turns == 10:
                harness.leaves("w4")
    assert harness.coordinator.state.version and cause(harness) == "missing"


@pytest.mark.parametrize("dealt", [True, False])
def test_a_job_in_which_nothing_was_applied_is_no_success(dealt: bool, sentences: Recorder) -> None:
    """Under krum, one of five is gone: no update has enough contributions."""
    work = WorkTerms(20, batches=1) if dealt else None
    terms = {"allow_missing": False}
    harness = CoordinatorHarness("krum", {"byzantine": 1}, 5, terms, now=0.0, work=work).starts()
    harness.leaves("w4")
    for _ in range(40):
        for number in range(4):
            if not harness.stopped and harness.holds(f"w{number}") is not None:
                harness.commits(f"w{number}")
    for number in range(4):
        if not harness.stopped:
            harness.done(f"w{number}")
    harness.passes(100.0)
    assert harness.coordinator.state.version == 0 and cause(harness) == "missing"
    sentences.check(harness.stopped)
