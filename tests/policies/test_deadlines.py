"""Parts of deadlines: a worker's own pace, limits, the k that gains most per time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psserver.policies import (
    Cancel,
    ClearTimer,
    ComposedPolicy,
    Composition,
    Deadline,
    DropStale,
    Everyone,
    GainPerTime,
    Grace,
    Grant,
    PolicyError,
    SetTimer,
    StateError,
    Timer,
    Times,
    View,
    WaitForUpdate,
    build,
    microseconds,
)
from tests.policies.harness import PolicyHarness
from tests.policies.timed import Clocked

SECOND = 1_000_000


# A worker's own pace


def test_a_pace_is_that_of_rfc_6298() -> None:
    found = Times(now=SECOND)
    found.committed("w0", 0)
    pace = found.paces["w0"]
    assert (pace.mean, pace.deviation, pace.limit) == (1e6, 5e5, 3_000_000)
    found.now = 3 * SECOND
    found.committed("w0", SECOND)
    assert (pace.mean, pace.deviation) == (1.125e6, 6.25e5)


def test_a_slow_worker_is_waited_for_as_long_as_it_is_usual_for_it() -> None:
    """w2 always takes 3 s: that is no reason to go on without it. Once it takes 30 s, it is."""
    clocked = Clocked("deadline-sync", rule="pace", most=60.0, patience=0)
    for _ in range(12):
        clocked.round({"w0": 1.0, "w1": 1.0, "w2": 3.0})
    assert [len(update.parts) for update in clocked.updates] == [3] * 12
    clocked.round({"w0": 1.0, "w1": 1.0, "w2": 30.0})
    assert len(clocked.updates[-1].parts) == 2 and clocked.now - clocked.began < 10.0


# Deadlines in a policy


def test_the_timer_is_set_at_the_first_commit_and_cleared_by_the_last() -> None:
    clocked = Clocked("deadline-sync", grace=2.0)
    assert clocked.commits("w0", 1.0)[-1] == SetTimer("deadline", 3 * SECOND)
    assert not any(isinstance(d, SetTimer | ClearTimer) for d in clocked.commits("w1", 2.0))
    assert ClearTimer("deadline") in clocked.commits("w2", 2.5)
    assert len(clocked.updates[0].parts) == 3


def test_the_deadline_makes_the_update_and_cancels_who_is_late() -> None:
    clocked = Clocked("deadline-sync", grace=2.0)
    clocked.commits("w0", 1.0)
    clocked.commits("w1", 1.5)
    decisions = clocked.tell(Timer("deadline", 3.0))
    assert len(clocked.updates[0].parts) == 2 and clocked.updates[0].scale == 0.5
    assert [d.ticket for d in decisions if isinstance(d, Cancel)] == [3]
    assert [d.worker for d in decisions if isinstance(d, Grant)] == ["w0", "w1"]


def test_no_update_is_made_of_less_than_the_share() -> None:
    clocked = Clocked("deadline-sync", workers=5, grace=1.0, share=0.6)
    clocked.commits("w0", 1.0)
    assert clocked.tell(Timer("deadline", 2.0)) == []
    clocked.commits("w1", 2.5)
    assert clocked.updates == []
    clocked.commits("w2", 2.75)
    assert len(clocked.updates[0].parts) == 3


def test_a_worker_that_missed_updates_is_waited_for() -> None:
    clocked = Clocked("deadline-sync", grace=1.0, patience=2, budget=1.0)
    lengths = []
    for _ in range(6):
        clocked.round({"w0": 1.0, "w1": 1.0, "w2": 9.0})
        lengths.append(len(clocked.updates[-1].parts))
    assert lengths == [2, 2, 3, 2, 2, 3]


@pytest.mark.parametrize(("budget", "share"), [(0.0, 0.0), (0.1, 0.1), (0.25, 0.25)])
def test_cancelled_work_stays_within_the_budget(budget: float, share: float) -> None:
    clocked = Clocked("deadline-sync", grace=1.0, patience=0, budget=budget)
    for _ in range(200):
        clocked.round({"w0": 1.0, "w1": 1.0, "w2": 9.0})
    applied, cancelled = sum(len(u.parts) for u in clocked.updates), len(clocked.cancelled)
    earned = applied * budget / (1 - budget)
    assert min(earned, 3 + earned - 1) <= cancelled <= 3 + earned
    assert cancelled / (applied + cancelled) <= share + 0.01


def test_a_pause_of_the_job_does_not_make_the_deadline_pass() -> None:
    """Only the timer says that it has passed, which the coordinator postpones."""
    clocked = Clocked("deadline-sync", grace=1.0)
    clocked.commits("w0", 1.0)
    clocked.commits("w1", 500.0)
    assert clocked.updates == []


def test_fedbuff_does_not_let_gradients_grow_old_in_the_buffer() -> None:
    clocked = Clocked("fedbuff-timeout", aggregate=3, timeout=2.0)
    clocked.commits("w0", 1.0)
    clocked.commits("w0", 2.0)
    clocked.tell(Timer("deadline", 3.0))
    assert [len(update.parts) for update in clocked.updates] == [2] and clocked.updates[0].scale == 0.5


def test_a_state_without_times_is_refused() -> None:
    with pytest.raises(StateError, match="times"):
        build("deadline-sync", {}, 2).restore(build("sync", {}, 2).state())
    with pytest.raises(StateError, match="times"):
        build("sync", {}, 2).restore(build("deadline-sync", {}, 2).state())


def test_a_policy_without_a_deadline_keeps_no_times() -> None:
    view = build("sync", {}, 2).state()["view"]
    assert isinstance(view, dict) and view["times"] is None


def test_a_deadline_needs_the_order_of_commits() -> None:
    parts = (WaitForUpdate(), Everyone(2), DropStale(0))
    with pytest.raises(PolicyError, match="deadline"):
        Composition(*parts, order="rank", deadline=Deadline(Grace(1.0)))
    with pytest.raises(PolicyError, match="deadline"):
        Composition(*parts, deadline=Grace(1.0))  # type: ignore[arg-type]


# The k that gains most per time


def chosen(noise: float, *ranks: float, workers: int = 0) -> int:
    """The k by usual times of the first commit, the second, and so on."""
    view = View(times=Times(ranks=[each * SECOND for each in ranks]))
    for n in range(workers or len(ranks)):
        view.join(f"w{n}", n)
    return GainPerTime(noise).choose(view)


def test_it_waits_for_all_where_all_are_equally_fast() -> None:
    assert chosen(4.0, *[1.0] * 8) == 8


def test_it_leaves_out_a_straggler() -> None:
    assert chosen(4.0, 1.0, 1.0, 1.0, 10.0) == 3
    assert chosen(4.0, 1.0, 1.0, 1.0, 1.1) == 4


def test_without_noise_one_gradient_is_as_good_as_many() -> None:
    assert chosen(0.0, *[1.0 + n / 100 for n in range(8)]) == 1


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=12), st.floats(0.0, 100.0))
def test_no_other_k_gains_more_per_time(steps: list[float], noise: float) -> None:
    ranks = [sum(steps[: n + 1]) for n in range(len(steps))]
    k = chosen(noise, *ranks)
    gains = [n / (n + noise) / ranks[n - 1] for n in range(1, len(ranks) + 1)]
    assert gains[k - 1] >= max(gains) * (1 - 1e-9)


def test_it_waits_for_all_until_it_knows_better() -> None:
    assert chosen(0.0, *[1.0] * 7, workers=8) == 8


def test_times_count_from_the_start_of_the_round() -> None:
    found = Times(now=0)
    found.granted()
    for now, ticket in ((1.0, 1), (2.0, 2)):
        found.now = microseconds(now)
        found.committed(f"w{ticket}", 0)
    found.updated(0)
    found.now = microseconds(11.0)
    found.committed("w1", microseconds(2.0))
    assert found.ranks == [1e6 + (9e6 - 1e6) / 8, 2e6] and found.complete == 2 * SECOND


def test_dbw_goes_on_without_a_slow_worker_and_takes_it_back() -> None:
    clocked = Clocked("dbw", workers=4, noise=4.0)
    slow = {"w0": 1.0, "w1": 1.0, "w2": 1.0, "w3": 20.0}
    for _ in range(40):
        clocked.round(slow)
    assert [len(update.parts) for update in clocked.updates] == [4] + [3] * 39
    while clocked.now < 2000.0:
        clocked.round(slow)
    sizes = [len(update.parts) for update in clocked.updates]
    # Waiting for all takes 20 s, and is tried again after 400 s at the earliest.
    assert 3 <= sizes.count(4) <= 5 and set(sizes) == {3, 4}
    while clocked.now < 6000.0:
        clocked.round(dict.fromkeys(clocked.workers, 1.0))
    assert [len(update.parts) for update in clocked.updates[-50:]] == [4] * 50


def test_a_policy_of_your_own_may_have_a_deadline() -> None:
    policy = ComposedPolicy(
        Composition(WaitForUpdate(), Everyone(2), DropStale(0), deadline=Deadline(Grace(1.0), share=0.0)),
        name="own",
    )
    harness = PolicyHarness(policy)
    harness.join("w0", "w1")
    harness.ready("w0", "w1")
    assert harness.commit("w0")[-1] == SetTimer("deadline", SECOND)
    harness.tell(Timer("deadline", 1.0))
    assert len(harness.updates) == 1
