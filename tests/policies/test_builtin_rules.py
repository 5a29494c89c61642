"""The further policies one by one: what a few facts must lead to, and which knobs are refused."""

import pytest

from psserver.policies import Cancel, Drop
from psserver.policies.parts.weights import FAMILIES, Concurrency
from tests.policies.harness import kinds, start_policy
from tests.sentences import Recorder


def test_k_sync_takes_the_first_k_and_cancels_the_others(sentences: Recorder) -> None:
    harness = start_policy("k-sync", workers=4, aggregate=2)
    assert kinds(harness.commit("w2")) == ["Fold"]
    assert harness.waits("w2")
    sentences.check(harness.policy.explain("w2").event)  # type: ignore[union-attr]
    assert kinds(harness.commit("w0")) == ["Apply", "Cancel", "Cancel", "Grant"]
    assert harness.authors(harness.updates[0]) == ["w2", "w0"]
    assert harness.updates[0].scale == 0.5
    assert [harness.owner[t] for t in harness.cancelled] == ["w1", "w3"]
    assert set(harness.cancelled.values()) == {"version 1 was made without it"}


def test_k_sync_may_drop_the_late_instead() -> None:
    """TensorFlow's SyncReplicasOptimizer drops a gradient whose step has passed."""
    harness = start_policy("k-sync", workers=3, aggregate=2, late="drop")
    harness.commit("w0")
    assert kinds(harness.commit("w1")) == ["Apply", "Grant"]
    late = harness.held["w2"]
    assert harness.commit("w2") == [Drop(late, "stale")]
    assert harness.version == 1 and "w2" in harness.held


def test_k_sync_keeps_its_number_when_workers_join_and_goes_on_when_few_are_left() -> None:
    harness = start_policy("k-sync", workers=3, aggregate=2)
    harness.join("w3")
    harness.ready("w3")
    harness.commit("w0")
    assert "Apply" in kinds(harness.commit("w3"))
    for worker in ("w1", "w2", "w3"):
        harness.leave(worker)
    assert "Apply" in kinds(harness.commit("w0"))
    assert harness.version == 2


def test_sync_with_backup_grows_with_its_workers_and_k_sync_does_not() -> None:
    """Where the two differ: `backup` counts who need not come, `aggregate` who must."""
    for name, knobs, versions in (("sync", {"backup": 1}, 0), ("k-sync", {"aggregate": 2}, 1)):
        harness = start_policy(name, workers=3, **knobs)
        harness.join("w3")
        harness.ready("w3")
        harness.commit("w0")
        harness.commit("w1")
        assert harness.version == versions


def test_k_batch_sync_takes_several_of_one_worker_and_cancels_all_others() -> None:
    harness = start_policy("k-batch-sync", workers=3, aggregate=3)
    harness.commit("w0")
    assert not harness.waits("w0")
    harness.commit("w0")
    decisions = harness.commit("w0", again=False)
    assert kinds(decisions) == ["Apply", "Cancel", "Cancel"]
    assert harness.authors(harness.updates[0]) == ["w0"] * 3
    assert harness.staleness == [0, 0, 0]


def test_k_batch_sync_cancels_what_a_contributor_has_begun_anew() -> None:
    harness = start_policy("k-batch-sync", workers=2, aggregate=2)
    harness.commit("w0")
    decisions = harness.commit("w1", again=False)
    assert [harness.owner[d.ticket] for d in decisions if isinstance(d, Cancel)] == ["w0"]


def test_k_async_waits_for_other_workers_and_takes_them_however_old() -> None:
    harness = start_policy("k-async", workers=3, aggregate=2)
    for _ in range(3):
        harness.commit("w0")
        assert harness.waits("w0")
        harness.commit("w1")
    assert harness.version == 3 and not harness.cancelled
    harness.commit("w2")
    harness.commit("w0")
    assert harness.staleness[-2:] == [3, 0]
    assert harness.authors(harness.updates[-1]) == ["w2", "w0"]


@pytest.mark.parametrize(("workers", "n", "size"), [(4, 1, 4), (4, 2, 2), (4, 3, 1), (4, 4, 1), (7, 2, 3)])
def test_softsync_takes_a_share_of_the_workers(workers: int, n: int, size: int) -> None:
    harness = start_policy("softsync", workers=workers, n=n)
    for _ in range(size):
        assert harness.version == 0
        harness.commit("w0")
    assert harness.version == 1


def test_softsync_divides_by_the_staleness() -> None:
    harness = start_policy("softsync", workers=4, n=4)
    for worker in ("w0", "w1", "w2", "w3"):
        harness.commit(worker)
    assert [u.parts[0].factor for u in harness.updates] == [1.0, 1.0, 1 / 2, 1 / 3]


def test_fedbuff_weighs_by_staleness_and_divides_by_k() -> None:
    harness = start_policy("fedbuff", workers=3, aggregate=2)
    for worker in ("w0", "w0", "w1", "w2"):
        harness.commit(worker)
    (first, second) = harness.updates
    assert [p.factor for p in first.parts] == [1.0, 1.0]
    assert [p.factor for p in second.parts] == [pytest.approx(2**-0.5)] * 2
    assert (first.scale, second.scale) == (0.5, 0.5)
    assert second.lr_scale == 1.0


def test_fedbuff_may_sum() -> None:
    harness = start_policy("fedbuff", workers=2, aggregate=2, norm="sum")
    harness.commit("w0")
    harness.commit("w0")
    assert harness.updates[0].scale == 1.0


@pytest.mark.parametrize(
    ("family", "weights"),
    [
        ("const", [1, 1, 1, 1]),
        ("inverse", [1, 1, 1 / 2, 1 / 5]),
        ("polynomial", [1, 2**-10.0, 3**-10.0, 6**-10.0]),
        # Xie et al. 2019 with a = 10, b = 4: it falls from 1 to 1/11 in one step.
        ("hinge", [1, 1, 1, 1 / 11]),
        ("exponential", [1, pytest.approx(4.54e-5, rel=1e-3), pytest.approx(2.06e-9, rel=1e-2), 0]),
        ("threshold", [1, 1, 1, 10]),
    ],
)
def test_weight_families(family: str, weights: list[float]) -> None:
    weight = FAMILIES[family](10.0, 4)
    assert [weight(staleness) for staleness in (0, 1, 2, 5)] == pytest.approx(weights, abs=1e-15)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_fresh_gradient_counts_in_full_and_nothing_ever_counts_for_less_than_nothing(family: str) -> None:
    weight = FAMILIES[family](0.5, 3)
    values = [weight(staleness) for staleness in range(2000)]
    assert values[0] == 1.0
    assert values == sorted(values, reverse=True)
    assert values[-1] >= 0.0


def test_delay_adaptive_scales_the_learning_rate_and_not_the_gradient() -> None:
    """Mishchenko et al. 2022: eta M / max(M, tau)."""
    harness = start_policy("delay-adaptive", workers=2, concurrency=2)
    for _ in range(4):
        harness.commit("w0")
    harness.commit("w1")
    assert [u.lr_scale for u in harness.updates] == [1, 1, 1, 1, 2 / 4]
    assert {p.factor for u in harness.updates for p in u.parts} == {1.0}


def test_delay_adaptive_takes_the_number_of_workers_for_m() -> None:
    assert Concurrency(3)(6) == 0.5
    harness = start_policy("delay-adaptive", workers=2)
    for _ in range(4):
        harness.commit("w0")
    harness.commit("w1")
    assert harness.updates[-1].lr_scale == 0.5


def test_ringmaster_stops_what_has_become_r_versions_old() -> None:
    harness = start_policy("ringmaster", workers=3, threshold=2, stops=True)
    harness.commit("w0")
    assert not harness.cancelled
    harness.commit("w0")
    assert [harness.owner[t] for t in harness.cancelled] == ["w1", "w2"]
    harness.ready("w1")
    harness.commit("w1")
    assert not harness.dropped


def test_ringmaster_of_one_is_the_fastest_worker_alone() -> None:
    harness = start_policy("ringmaster", workers=3, threshold=1, stops=True)
    for _ in range(5):
        harness.commit("w0")
        harness.ready("w1", "w2")
    assert {harness.authors(u)[0] for u in harness.updates} == {"w0"}


def test_dc_asgd_compensates_all_that_is_stale() -> None:
    harness = start_policy("dc-asgd", workers=2, compensation=0.5)
    assert harness.policy.tensors.keep_bases
    harness.commit("w0")
    harness.commit("w1")
    assert [u.parts[0].compensation for u in harness.updates] == [0.0, 0.5]
