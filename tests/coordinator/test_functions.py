"""Workers whose models compute something else are refused, and only these."""

import pytest

from pslab.verify.harness import CoordinatorHarness, JoinError
from psserver.coordinator import Coordinator, JobState
from psserver.decisions.entries import Model
from psserver.policies import build
from tests.sentences import Recorder


def begun() -> CoordinatorHarness:
    harness = CoordinatorHarness("async", workers=2, now=0.0)
    harness.join("w0", "A", 0, function="f0")
    harness.connects("w0")
    return harness


def test_another_function_is_refused_and_nothing_changes(sentences: Recorder) -> None:
    harness = begun()
    before = harness.state(), len(harness.log)
    with pytest.raises(JoinError) as refused:
        harness.join("w1", "A", 1, function="f1")
    sentences.check(refused)
    assert (harness.state(), len(harness.log)) == before
    harness.join("w1", "A", 1, function="f0")
    harness.join("w2", "A", 2)  # a worker in NumPy, say


def test_what_counts_is_in_the_log_and_in_checkpoints() -> None:
    harness = begun()
    harness.ready("w0")
    harness.commits("w0")
    assert [entry.function for entry in harness.entries(Model)] == ["f0"]
    terms, saved = harness.coordinator.terms, harness.coordinator.saved()
    harness.coordinator = Coordinator(terms, build("async", {}, 2), given=JobState.read(saved))
    with pytest.raises(JoinError):
        harness.join("w1", "A", 1, function="f1")


def test_a_worker_alone_may_come_back_with_another_one_before_anything_is_trained() -> None:
    harness = begun()
    harness.join("w0", "B", 0, function="f1")
    harness.connects("w0", "B")
    with pytest.raises(JoinError):
        harness.join("w1", "A", 1, function="f0")
