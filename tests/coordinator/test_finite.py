"""Elements that are kept back: the log has them, and the job ends where much of the model stays as it was."""

from random import Random

import pytest

from pslab.verify.harness import CoordinatorHarness
from psserver.coordinator import inputs
from psserver.decisions import entries
from psserver.policies import names
from tests.promises import promise
from tests.repetitions import seeds

# Of the built-in policies those that need knobs for few workers.
KNOBS: dict[str, dict[str, object]] = {
    "k-sync": {"aggregate": 1},
    "k-async": {"aggregate": 1},
    "median": {"fewest": 1},
    "trimmed-mean": {"trim": 0},
    "krum": {"byzantine": 0, "select": 1},
}


def begun(policy: str = "async", workers: int = 2, **terms: object) -> CoordinatorHarness:
    return CoordinatorHarness(policy, KNOBS.get(policy, {}), workers, terms=terms).starts()


def test_a_version_that_is_wholly_new_leaves_no_trace() -> None:
    harness = begun()
    harness.shards_make(0)
    harness.commits("w0")
    before = len(harness.log)
    assert harness.shards_make(1, elements=100) == []
    assert len(harness.log) == before
    assert harness.coordinator.state.kept_back.told == 1


def test_what_is_told_again_counts_once() -> None:
    harness = begun(nonfinite_limit=2)
    harness.commits("w0")
    harness.shards_make(0)
    for _ in range(3):
        harness.shards_make(1, kept=5, elements=100, variable="w")
    (entry,) = harness.entries(entries.Nonfinite)
    assert (entry.version, entry.kept, entry.variable, entry.workers) == (1, 5, "w", ("w0",))
    assert harness.coordinator.state.kept_back.elements == 5 and not harness.stopped
    assert harness.verdict().ok


@promise("A job of which much is not finite ends with exit code 8, and names versions, variables and workers")
def test_the_limit_ends_the_job_and_names_all() -> None:
    harness = begun(nonfinite_limit=3)
    for version, worker in enumerate(("w0", "w1", "w0"), 1):
        harness.commits(worker)
        assert not harness.stopped
        harness.shards_make(version, kept=10, elements=100, variable="dense/kernel")
    assert harness.stopped.startswith("diverged: 3 updates in a row")
    assert (
        "in version 3 most were of dense/kernel" in harness.stopped and "came from w0, w1" in harness.stopped
    )
    assert harness.verdict().ok


def test_what_comes_behind_the_stop_is_recorded_and_ends_nothing_again() -> None:
    harness = begun(versions=1, nonfinite_limit=1)
    harness.commits("w0")
    assert harness.stopped.startswith("versions")
    harness.shards_make(1, kept=100, elements=100, variable="w", whole=True)
    assert harness.stopped.startswith("versions") and harness.entries(entries.Nonfinite)
    assert harness.verdict().ok


@pytest.mark.parametrize("told", [True, False])
def test_a_row_goes_on_over_a_resume_unless_versions_were_never_told_about(told: bool) -> None:
    harness = begun(checkpoint_versions=5, nonfinite_limit=2)
    much = {"kept": 10, "elements": 100, "variable": "w"}
    for version in (1, 2):
        harness.commits("w0")
        if version == 1:
            harness.shards_make(version, **much)
    if told:
        harness.shards_make(2, kept=1, elements=10**6, variable="w")
        harness.commits("w0")
        harness.shards_make(3, **much)
    harness.gives(inputs.SaveAsked())
    harness.servers_crash()
    assert harness.coordinator.state.kept_back.row == (1 if told else 0)


def test_a_job_that_goes_on_is_told_about_new_versions_only() -> None:
    harness = begun(checkpoint_versions=5)
    harness.commits("w0")
    harness.gives(inputs.SaveAsked())
    harness.servers_crash()
    assert harness.coordinator.state.kept_back.told == 1


@pytest.mark.parametrize("policy", names())
@pytest.mark.parametrize("seed", list(seeds(3, soak=40, fast=1)))
def test_under_any_facts_the_log_keeps_its_promises(policy: str, seed: int) -> None:
    """Facts come late, and now and then something is kept back, at random: the job ends in order."""
    draw = Random(f"{policy} {seed}")
    workers = draw.randint(3 if policy == "krum" else 1, 4)
    harness = begun(policy, workers, nonfinite_limit=draw.choice((2, 1000)))
    names = [f"w{rank}" for rank in range(workers)]
    left = {name: draw.randint(1, 8) for name in names}
    told = 0
    for _ in range(400):
        if harness.stopped:
            break
        if told <= harness.coordinator.state.version and draw.random() < 0.5:
            kept = draw.choice((0, 0, 1, 50)) if told else 0
            harness.shards_make(told, kept=kept, elements=100_000, variable="w" if kept else "")
            told += 1
            continue
        name = draw.choice(names)
        present = harness.coordinator.state.roster.present.get(name)
        if present is None:
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
            harness.commits(name)
    for _ in range(100):
        if harness.stopped:
            break
        for member in list(harness.coordinator.state.roster.present.values()):
            harness.done(member.worker)
        harness.passes(20.0)
    assert harness.stopped.startswith(("done", "diverged")), harness.stopped
    verdict = harness.verdict()
    assert verdict.ok, [str(violation) for violation in verdict.violations]
