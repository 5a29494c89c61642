"""Time is a fact like any other: the policy hears what the log will tell, so a log can be heard again."""

import json
import random
from dataclasses import replace

import pytest

from pslab.verify.harness import CoordinatorHarness
from psserver.policies import Commit, Decision, Event, Policy, PolicyError, Waiting, build
from pswire.decisions import entries
from tests.sentences import Recorder


class Overheard(Policy):
    """A policy whose every word is kept."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.name, self.knobs, self.tensors = policy.name, policy.knobs, policy.tensors
        self.heard: list[Event] = []
        self.said: list[list[Decision]] = []

    def step(self, event: Event) -> list[Decision]:
        self.heard.append(event)
        self.said.append(self.policy.step(event))
        return self.said[-1]

    def explain(self, worker: str) -> Waiting | None:
        return self.policy.explain(worker)


def a_job(seed: int) -> tuple[Overheard, CoordinatorHarness]:
    """DSSP decides on times with all the digits that a clock may have; w2 takes three times as long."""
    dice = random.Random(seed)
    recorder = Overheard(build("dssp", {"lower": 1, "upper": 6}, 3))
    harness = CoordinatorHarness(recorder, workers=3, now=12345.678901234567).starts()
    for _ in range(300):
        harness.passes(dice.expovariate(10.0))
        able = [w for w in ("w0", "w0", "w0", "w1", "w1", "w1", "w2") if harness.holds(w)]
        harness.commits(dice.choice(able))
    return recorder, harness


def test_a_commit_is_heard_at_the_time_that_the_log_tells() -> None:
    recorder, harness = a_job(1)
    heard = [event.t for event in recorder.heard if isinstance(event, Commit)]
    # The log is written in whole microseconds.
    told = [round(record.t, 6) for record in harness.log if isinstance(record.entry, entries.Commit)]
    assert heard == told
    assert json.loads(json.dumps(heard)) == heard


def test_the_facts_of_a_log_lead_to_the_same_decisions() -> None:
    for seed in range(5):
        recorder, _ = a_job(seed)
        again = build("dssp", {"lower": 1, "upper": 6}, 3)
        assert [again.step(event) for event in recorder.heard] == recorder.said


def test_without_the_times_it_decides_otherwise(sentences: Recorder) -> None:
    """It does not grant what was granted, so a commit of it is refused: the test above tests something."""
    recorder, _ = a_job(1)
    blind = build("dssp", {"lower": 1, "upper": 6}, 3)
    with pytest.raises(PolicyError) as refused:
        for event in recorder.heard:
            blind.step(replace(event, t=0.0) if isinstance(event, Commit) else event)
    sentences.check(refused)
