"""Updates that may not be finite: the shards are asked, and the update is made or refused as a whole."""

from collections.abc import Callable, Mapping
from random import Random

import pytest

from pslab.verify.harness import CoordinatorHarness, JoinError, granted
from psserver.coordinator import inputs
from psserver.coordinator.units import WorkTerms
from psserver.policies import (
    Apply,
    Commit,
    Decision,
    Event,
    Grant,
    Part,
    Policy,
    Ready,
    StateError,
    Waiting,
    names,
)
from pswire import protocol
from pswire.decisions import entries
from tests.repetitions import seeds

# Of the built-in policies those that need knobs for few workers.
KNOBS: Mapping[str, Mapping[str, object]] = {
    "k-sync": {"aggregate": 1},
    "k-async": {"aggregate": 1},
    "median": {"fewest": 1},
    "trimmed-mean": {"trim": 0},
    "krum": {"byzantine": 0, "select": 1},
}


def begun(policy: str = "async", workers: int = 2, **terms: object) -> CoordinatorHarness:
    return CoordinatorHarness(policy, KNOBS.get(policy, {}), workers, terms=terms).starts()


@pytest.mark.parametrize("finite", [True, False])
def test_a_policy_that_takes_over_behind_a_trial_is_asked_once_for_each_worker(finite: bool) -> None:
    """The request that came with the commit waits for the trial, as the change does."""
    harness = begun(workers=3)
    harness.commits("w0", ordinary=False)
    harness.changes_policy("k-async", {"aggregate": 1})
    outputs = harness.shards_answer(finite=finite)
    assert harness.entries(entries.Policy) and not harness.stopped
    assert len(granted(outputs)) == 1
    assert harness.verdict().ok


def test_nothing_is_decided_while_the_shards_are_asked() -> None:
    harness = begun(workers=3)
    harness.commits("w0", ordinary=False)
    before = len(harness.log)
    harness.commits("w1")
    harness.disconnects("w2")
    harness.passes(1.0)
    assert len(harness.log) == before
    with pytest.raises(JoinError):
        harness.joins("w3")
    with pytest.raises(StateError):
        harness.coordinator.saved()
    harness.shards_answer(finite=True)
    assert harness.kinds[before:] == ["apply", "grant", "commit", "apply", "grant", "lost"]
    harness.joins("w3")
    assert harness.verdict().ok


INPUTS: Mapping[str, Callable[[CoordinatorHarness], object]] = {
    "Connected": lambda harness: harness.connects("w1", session="another"),
    "Disconnected": lambda harness: harness.disconnects("w1"),
    "GivenUp": lambda harness: harness.gives(inputs.GivenUp("w1", "idle")),
    "Noted": lambda harness: harness.gives(inputs.NoteAdded("hot")),
    "Leave": lambda harness: harness.leaves("w1", "its own reason"),
    "Ready ahead": lambda harness: harness.asks("w0", protocol.Ready(2)),
    "Commit": lambda harness: harness.commits("w1", samples=3, loss=2.0, norm=7.0),
    "Commit without a request": lambda harness: harness.commits("w1", ready=False, batch=5),
    "Abandon": lambda harness: harness.abandons("w1", reason="its own reason"),
    "Abandon at a unit's end": lambda harness: harness.abandons("w1", unit_ends=True),
    "Done": lambda harness: harness.done("w1"),
    "Done for all": lambda harness: harness.done("w1", ends="enough is known"),
}


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("work", [None, WorkTerms(units=12)], ids=["own data", "units"])
def test_an_input_during_a_trial_does_what_it_does_after_the_answer(
    name: str, work: WorkTerms | None
) -> None:
    """Every input, with every argument."""

    def asked() -> CoordinatorHarness:
        harness = CoordinatorHarness("async", workers=2, work=work).starts()
        harness.commits("w0", ordinary=False)
        return harness

    during, after = asked(), asked()
    assert during.coordinator.trying
    INPUTS[name](during)
    during.shards_answer(finite=True)
    after.shards_answer(finite=True)
    INPUTS[name](after)
    assert [record.entry for record in during.log] == [record.entry for record in after.log]
    assert during.coordinator.saved() == after.coordinator.saved()
    told = [(send.worker, send.notice) for send in during.told]
    assert sorted(map(repr, told)) == sorted(repr((send.worker, send.notice)) for send in after.told)
    assert during.stopped == after.stopped


class Simple(Policy):
    """Async, by somebody who knows nothing of refusals."""

    name = "simple"

    def step(self, event: Event) -> list[Decision]:
        match event:
            case Commit():
                return [Apply((Part(event.ticket),))]
            case Ready():
                return [Grant(event.worker, event.ticket)]
        return []

    def explain(self, worker: str) -> Waiting | None:
        return None


def test_a_policy_that_cannot_retract_ends_with_the_first() -> None:
    harness = CoordinatorHarness(Simple(), workers=2).starts()
    harness.commits("w0", ordinary=False)
    harness.shards_answer(finite=False)
    assert "diverged: an update would not be finite (policy simple cannot go on without)" in harness.stopped
    assert harness.verdict().ok


@pytest.mark.parametrize("policy", names())
@pytest.mark.parametrize("seed", list(seeds(3, soak=40, fast=1)))
def test_any_schedule_of_answers_keeps_every_promise(policy: str, seed: int) -> None:
    """Large payloads, answers, losses and rejoins at random: the log keeps its promises, and the job ends."""
    draw = Random(f"{policy} {seed}")
    workers = draw.randint(3 if policy == "krum" else 1, 4)
    harness = begun(policy, workers, nonfinite_limit=1000)
    names = [f"w{rank}" for rank in range(workers)]
    left = {name: draw.randint(1, 8) for name in names}
    for _ in range(400):
        if harness.stopped:
            break
        if harness.coordinator.trying and draw.random() < 0.7:
            harness.shards_answer(finite=draw.random() < 0.5)
            continue
        name = draw.choice(names)
        present = harness.coordinator.state.roster.present.get(name)
        if present is None:
            if not harness.coordinator.trying:
                harness.joins(name, session=str(draw.random()))
                harness.ready(name)
        elif present.state == "done":
            continue
        elif harness.holds(name) is None:
            harness.ready(name)
        elif draw.random() < 0.1:
            harness.leaves(name)
        elif left[name] <= 0:
            harness.done(name)
        elif draw.random() < 0.1:
            harness.abandons(name)
            harness.ready(name)
        else:
            left[name] -= 1
            harness.commits(name, ordinary=draw.random() < 0.5)
    for _ in range(100):
        if harness.stopped:
            break
        if harness.coordinator.trying:
            harness.shards_answer(finite=draw.random() < 0.5)
        for member in list(harness.coordinator.state.roster.present.values()):
            harness.done(member.worker)
        harness.passes(20.0)
    assert harness.stopped.startswith(("done", "diverged")), harness.stopped
    verdict = harness.verdict()
    assert verdict.ok, [str(violation) for violation in verdict.violations]
    if harness.trials:
        assert {type(record.entry) for record in harness.log} & {entries.Refuse, entries.Apply}
