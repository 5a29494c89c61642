"""How a job ends: the data, a number of versions, a signal, nobody left. And when it must not."""

import pytest

from pslab.verify.harness import CoordinatorHarness
from tests.promises import promise
from tests.sentences import Recorder


def finishes(harness: CoordinatorHarness, *workers: str) -> None:
    for worker in workers:
        if harness.holds(worker) is not None:
            harness.commits(worker, ready=False)
        harness.done(worker)


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
    tally = harness.coordinator.state.roster.tally("w0")
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
    assert (
        harness.coordinator.state.stopped is not None and harness.coordinator.state.stopped.success == allowed
    )


def test_idle_for_ever_when_told_so() -> None:
    harness = CoordinatorHarness(workers=1, terms={"idle_timeout": 0.0})
    harness.passes(1e6)
    assert harness.stopped == ""


# A worker that dies again and again


# A worker that ends the job for all


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
