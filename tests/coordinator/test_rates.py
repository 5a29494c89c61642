"""A learning rate that a worker sets with a commit: an entry of the log, which every later update obeys."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslab.verify.harness import CoordinatorHarness, refusals
from psserver.coordinator import Coordinator, JobState
from psserver.decisions import entries
from psserver.optimizers import build
from psserver.policies import build as build_policy
from psserver.records import StateError
from tests.lab.logs import changed, inserted, verify
from tests.promises import promise
from tests.sentences import Recorder

ADAM = {"name": "adam", "learning_rate": 0.1}


def harness_with(optimizer: dict[str, Any], policy: str = "sync", **knobs: object) -> CoordinatorHarness:
    return CoordinatorHarness(policy, knobs, workers=2, optimizer=optimizer).starts()


def scales(harness: CoordinatorHarness) -> list[float]:
    return [apply.lr_scale for apply in harness.entries(entries.Apply)]


def records(harness: CoordinatorHarness) -> list[dict[str, Any]]:
    return [{"i": r.index, "t": round(r.t, 6), **r.entry.to_json()} for r in harness.log]


def trained() -> CoordinatorHarness:
    """Three rates in four rounds; the second worker, and saying the same again, change nothing."""
    harness = harness_with(ADAM)
    for rate in (None, 0.05, 0.05, 0.2):
        harness.commits("w0", learning_rate=rate)
        harness.commits("w1")
    return harness


def test_a_scale_of_the_policy_comes_on_top() -> None:
    harness = harness_with(ADAM, "delay-adaptive")
    harness.commits("w0", learning_rate=0.05)
    harness.commits("w0")
    harness.commits("w0")
    harness.commits("w0")
    harness.commits("w1")  # staleness 4 where 2 workers are usual
    assert scales(harness) == pytest.approx([0.5, 0.5, 0.5, 0.5, 0.25])
    assert verify(records(harness)).ok


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (
            {"name": "sgd", "learning_rate": {"schedule": "cosine", "decay_steps": 9}},
            "follows the schedule 'cosine'",
        ),
        ({"name": "sgd", "learning_rate": 0.0}, "began with 0.0"),
        ({"name": "sgd"}, "began with None"),
    ],
)
def test_a_rate_that_is_no_factor_is_refused_and_the_ticket_stays(
    optimizer: dict[str, Any], words: str
) -> None:
    harness = harness_with(optimizer)
    before = len(harness.log)
    assert words in refusals(harness.commits("w0", learning_rate=0.05))[0]
    assert len(harness.log) == before
    harness.commits("w0")
    harness.commits("w1")
    assert scales(harness) == [1.0]


@promise("A learning rate that a worker sets is the rate of the update, to the bit.")
@given(began=st.floats(2.0**-90, 2.0**90, width=32), rate=st.floats(0, 2.0**90, width=32))
def test_the_factor_gives_the_rate_to_the_bit(began: float, rate: float) -> None:
    optimizer = build({"name": "sgd", "learning_rate": began})
    assert optimizer.rate(3, rate / began) == np.float32(rate)


def test_whoever_joins_is_told_the_present_rate_where_it_can_be_set() -> None:
    assert harness_with(ADAM).coordinator.settable_rate == 0.1
    assert trained().coordinator.settable_rate == 0.2
    assert harness_with(ADAM, "median").coordinator.settable_rate is None
    cosine = {"schedule": "cosine", "decay_steps": 9}
    for rate in (0.0, cosine):
        assert harness_with({"name": "sgd", "learning_rate": rate}).coordinator.settable_rate is None


def test_a_saved_job_goes_on_with_the_rate(sentences: Recorder) -> None:
    harness = trained()
    saved = harness.coordinator.saved()
    with pytest.raises(StateError) as refused:
        JobState.read(saved | {"lr_scale": -1.0})
    sentences.check(refused)
    policy = build_policy("sync", {}, 2, 1)
    again = Coordinator(harness.coordinator.terms, policy, given=JobState.read(saved))
    assert again.saved() == saved and saved["lr_scale"] == 2.0 and again.settable_rate == 0.2


def test_the_check_holds_updates_and_factors_to_the_rates() -> None:
    assert verify(records(trained())).ok
    for edit, words in (
        (changed("rate", 1, scale=1.5), "0.2 / 0.1"),
        (
            inserted("apply", 3, kind="rate", worker="w0", learning_rate=0.2, scale=2.0),
            "without a commit right before",
        ),
    ):
        log = records(trained())
        edit(log)
        found = [violation.message for violation in verify(log).violations]
        assert any(words in message for message in found), (words, found)


@pytest.mark.parametrize("policy", ["median", "trimmed-mean", "krum", "one of a user's own"])
def test_the_check_refuses_a_rate_where_the_policy_tolerates_bad_workers(policy: str) -> None:
    """It goes by what the shards were told to use."""
    log = records(trained())
    own = policy == "one of a user's own"
    aggregator = "my-median" if own else policy
    log[0]["policy"] = {"name": policy}
    log[0]["tensors"] = {"compensator": None, "aggregator": aggregator, "knobs": {}}
    found = [v.message for v in verify(log).violations if v.check == "rates"]
    assert found == [
        f"w0 sets the learning rate to {rate:g}: under {aggregator}, which tolerates bad workers, "
        "no worker sets the rate for all"
        for rate in (0.05, 0.2)
    ]


def test_a_worker_may_end_the_job_for_all(sentences: Recorder) -> None:
    harness = harness_with(ADAM)
    harness.commits("w0")
    harness.commits("w1")
    harness.done("w1", ends="EarlyStopping in epoch 3")
    assert harness.stopped.startswith("done: ")
    sentences.check(harness.stopped)
    assert harness.coordinator.state.stopped is not None and harness.coordinator.state.stopped.success
    assert harness.coordinator.state.version == 1
