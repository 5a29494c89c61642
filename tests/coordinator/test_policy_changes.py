"""Another policy takes over while the job runs: whatever the pair, the schedule and the moment."""

from collections.abc import Mapping
from typing import Any

import pytest

from pslab.verify.guarded import Case, GuardedHarness
from pslab.verify.harness import CoordinatorHarness
from pslab.verify.schedule import Named, Schedule
from psserver.coordinator import Coordinator, Declined, JobState, inputs
from psserver.coordinator.terms import Planned
from psserver.decisions import entries as e
from psserver.policies import PolicyError, build
from psserver.policies.succession import successor, successors
from psserver.records import StateError
from tests.promises import promise
from tests.repetitions import repetitions, seeds
from tests.sentences import Recorder

WORKERS = 3
# Knobs that make a policy strict, beside the defaults of all that can take over.
STRICT: tuple[Named, ...] = (
    ("bounded", {"max_staleness": 0, "on_stale": "block"}),
    ("bounded", {"max_staleness": 1}),
    ("bounded", {"max_staleness": 2, "on_stale": "downweight"}),
    ("sync", {"backup": 1}),
    ("k-sync", {"late": "drop"}),
    ("ssp", {"slack": 0}),
    ("ringmaster", {"threshold": 2, "stops": True}),
)
LIVE: tuple[Named, ...] = (
    *((name, {}) for name in successors(build("sync", {}, WORKERS), WORKERS, 1)),
    *STRICT,
)


def test_every_plain_policy_can_take_over() -> None:
    assert {"sync", "async", "ssp", "dssp", "bounded", "k-async", "deadline-sync", "dbw"} <= {
        n for n, _ in LIVE
    }


@promise("The policy can change at any entry of the log without breaking a promise.")
def test_no_schedule_with_changes_breaks_a_promise() -> None:
    """A shard executes each log, and every check of `ps-lab check` reads it."""
    changes = settled = 0
    for seed in seeds(800, soak=40_000):
        name, knobs = LIVE[seed % len(LIVE)]
        case = Case(name, knobs, 2 + seed % 3)
        schedule = Schedule(case, seed, ahead=seed % 2 == 1, others=LIVE)
        schedule.run(40 + seed % 80)
        changes += schedule.job.kinds.count("policy")
        settled += schedule.job.kinds.count("settled")
        assert schedule.job.verdict().ok, seed
    assert changes > repetitions(800, soak=40_000) and settled > changes / 2


@pytest.mark.parametrize(
    ("name", "knobs"),
    [
        ("bounded", {"max_stale": 2}),
        ("bounded", {"max_staleness": -1}),
        ("bound", {}),
        ("median", {}),
        ("dc-asgd", {}),
        ("local-sgd", {"steps": 4}),
        ("easgd", {}),
        ("dana-slim", {}),
        ("sync", {"weight": "samples"}),
        ("tests.coordinator.faulty_policies:Fine", {}),
    ],
)
def test_what_cannot_take_over_is_refused(
    name: str, knobs: Mapping[str, object], sentences: Recorder
) -> None:
    with pytest.raises(PolicyError) as refusal:
        successor(build("sync", {}, WORKERS), name, knobs, WORKERS, 1)
    sentences.check(str(refusal.value))


@pytest.mark.parametrize("policy", ["sync", "k-batch-sync", "k-async", "deadline-sync"])
def test_a_change_takes_the_place_of_one_that_waits(policy: str) -> None:
    """A mistyped number can be undone, though the update that it waits for may never come."""
    knobs = {} if policy in ("sync", "deadline-sync") else {"aggregate": 3}
    job = GuardedHarness(Case(policy, knobs, WORKERS))
    job.starts()
    job.commits("w0")
    job.changes_policy("async", {})
    assert job.coordinator.policy.name == policy and job.coordinator.change
    job.changes_policy("k-sync", {"aggregate": 2}, "no, that one")
    assert job.coordinator.policy.name == "k-sync"
    assert [drop.reason for drop in job.entries(e.Drop)] == [e.REPLACED]
    assert [change.policy["name"] for change in job.entries(e.Policy)] == ["k-sync"]
    # The one whose contribution was dropped works again, and the sum has nothing of it.
    for _ in range(4):
        for worker in ("w0", "w1", "w2"):
            if job.holds(worker) is not None:
                job.commits(worker)
            elif job.member(worker).requested is None:
                job.ready(worker)
    assert job.version >= 4 and not job.fault
    assert job.verdict().ok, job.verdict().violations[:3]


def test_a_change_by_hand_is_saved_at_once_and_a_planned_one_is_not() -> None:
    for plan, expected in (((), ["policy", "checkpoint"]), ((Planned("async", {}, 1),), ["policy"])):
        terms: dict[str, Any] = {"checkpoint_versions": 1000, "plan": plan}
        job = CoordinatorHarness("sync", workers=1, terms=terms).starts()
        if not plan:
            job.changes_policy("async", {})
        job.commits("w0")
        assert job.coordinator.policy.name == "async"
        assert [kind for kind in job.kinds if kind in ("policy", "checkpoint")] == expected


def crash_after(entries: int) -> CoordinatorHarness:
    """Crash once the log has so many entries, and go on: a change is asked for at version 2, and planned at 4."""
    terms: dict[str, Any] = {"checkpoint_versions": 1, "plan": (Planned("bounded", {"max_staleness": 1}, 4),)}
    job = CoordinatorHarness("sync", workers=2, terms=terms).starts()
    crashed, asked, session = False, False, "A"
    while job.version < 6:
        for worker in ("w0", "w1"):
            if not crashed and job.saved is not None and len(job.log) >= entries:
                job.servers_crash()
                crashed, session = True, "B"
                for each in ("w0", "w1"):
                    job.joins(each, session)
                job.ready("w0", "w1")
            if job.version == 2 and not asked and job.coordinator.change.startswith("policy bounded takes"):
                job.changes_policy("ssp", {"slack": 1})
                asked = True
            if job.holds(worker) is not None:
                job.commits(worker)
    job.leaves("w0")
    job.leaves("w1")
    return job


def test_servers_that_crash_around_a_change_go_on_with_it() -> None:
    whole = crash_after(10**6)
    names = [change.policy["name"] for change in whole.entries(e.Policy)]
    assert names == ["ssp", "bounded"]
    for entries in range(8, len(whole.log)):
        job = crash_after(entries)
        # By hand it may be lost with its version; what is planned comes again, and only once.
        found = [change.policy["name"] for change in job.entries(e.Policy)]
        assert found in (["ssp", "bounded"], ["bounded"]), f"crash after {entries} entries: {found}"
        assert job.coordinator.policy.name == "bounded"
        assert job.verdict().ok, f"crash after {entries} entries: {job.verdict().violations[:3]}"


def restored(plain: object, job: CoordinatorHarness) -> Coordinator:
    return Coordinator(job.coordinator.terms, build("async", {}, job.workers), given=JobState.read(plain))


def test_a_saved_state_names_no_code() -> None:
    job = CoordinatorHarness("async", workers=1).starts()
    job.changes_policy("sync", {})
    plain = job.coordinator.saved()
    plain["policy"] = "os:system"
    with pytest.raises(StateError):
        restored(plain, job)


def test_a_plan_is_followed_at_its_place() -> None:
    job = CoordinatorHarness("sync", workers=2, terms={"plan": (Planned("async", {}, versions=4),)}).starts()
    for batch in range(6):
        for worker in ("w0", "w1"):
            job.commits(worker, batch=batch)
    assert [(change.version, change.by) for change in job.entries(e.Policy)] == [(4, "plan")]


def test_an_operator_sets_the_rate_with_a_change(sentences: Recorder) -> None:
    job = CoordinatorHarness("async", workers=2, optimizer={"name": "sgd", "learning_rate": 0.1}).starts()
    for rate in (0.0, -1.0, float("nan"), 1e7):
        (refusal,) = job.gives(inputs.ChangeAsked("sync", {}, "operator", rate=rate))
        assert isinstance(refusal, Declined)
        sentences.check(refusal.reason)
    job.gives(inputs.ChangeAsked("k-sync", {}, "operator", rate=2.0))
    for _ in range(2):
        job.commits("w0")
        job.commits("w1")
    # A change that says nothing of the rate leaves it.
    job.changes_policy("async", {})
    job.commits("w0")
    assert [change.rate for change in job.entries(e.Policy)] == [2.0, 2.0]
    assert {update.lr_scale for update in job.entries(e.Apply)} == {2.0}
    # A worker's own rate is multiplied.
    job.commits("w1", learning_rate=0.05)
    assert job.entries(e.Apply)[-1].lr_scale == 0.5 * 2
    assert job.verdict().ok
