"""The status names, for each waiting worker, the event that it waits for and the workers that can cause it."""

from psserver.policies import Waiting
from tests.policies.harness import start_policy


def test_a_working_worker_waits_for_nothing() -> None:
    for name in ("sync", "async", "bounded", "ssp"):
        harness = start_policy(name)
        assert [harness.policy.explain(f"w{rank}") for rank in range(3)] == [None] * 3


def test_an_unknown_worker_waits_for_nothing() -> None:
    assert start_policy("sync").policy.explain("nobody") is None


def test_the_barrier_names_the_missing() -> None:
    harness = start_policy("sync")
    harness.commit("w1")
    assert harness.policy.explain("w1") == Waiting(
        "version 1, which needs a commit of w0, w2", releasers=("w0", "w2")
    )
    harness.commit("w0")
    assert harness.policy.explain("w1") == Waiting("version 1, which needs a commit of w2", releasers=("w2",))


def test_the_barrier_forgets_the_departed() -> None:
    harness = start_policy("sync")
    harness.commit("w1")
    harness.leave("w0")
    waiting = harness.policy.explain("w1")
    assert waiting is not None
    assert waiting.releasers == ("w2",)


def test_block_names_whose_old_work_holds_the_update() -> None:
    harness = start_policy("bounded", workers=2, max_staleness=0, on_stale="block")
    harness.commit("w0")
    assert harness.policy.explain("w0") == Waiting(
        "version 1, held until w1 commits what it started from an older version", releasers=("w1",)
    )


def test_slack_names_the_slowest_and_the_clocks() -> None:
    harness = start_policy("ssp", workers=3, slack=1)
    harness.commit("w2")
    harness.commit("w0")
    harness.commit("w0")
    assert harness.policy.explain("w0") == Waiting(
        "w1 to complete clock 1 (now at 0; w0 is at 2, slack 1)", releasers=("w1",)
    )


def test_the_named_releaser_does_release() -> None:
    for name, knobs in (
        ("sync", {}),
        ("bounded", {"aggregate": 1, "max_staleness": 0, "on_stale": "block"}),
        ("ssp", {"slack": 0}),
    ):
        harness = start_policy(name, workers=3, **knobs)
        harness.commit("w0")
        for _ in range(2):
            waiting = harness.policy.explain("w0")
            assert waiting is not None
            harness.commit(waiting.releasers[0], again=False)
        assert harness.policy.explain("w0") is None
