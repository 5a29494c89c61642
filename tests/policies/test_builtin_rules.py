"""The further policies one by one: what a few facts must lead to, and which knobs are refused."""

import pytest

from psserver.policies import Cancel, Drop
from psserver.policies.parts.weights import FAMILIES, Concurrency
from tests.policies.harness import kinds, sit


def test_k_sync_takes_the_first_k_and_cancels_the_others() -> None:
    table = sit("k-sync", workers=4, aggregate=2)
    assert kinds(table.commit("w2")) == ["Fold"]
    assert table.waits("w2")
    assert table.policy.explain("w2").event == "version 1, which needs a commit of w0, w1, w3"  # type: ignore[union-attr]
    assert kinds(table.commit("w0")) == ["Apply", "Cancel", "Cancel", "Grant"]
    assert table.authors(table.updates[0]) == ["w2", "w0"]
    assert table.updates[0].scale == 0.5
    assert [table.owner[t] for t in table.cancelled] == ["w1", "w3"]
    assert set(table.cancelled.values()) == {"version 1 was made without it"}


def test_k_sync_may_drop_the_late_instead() -> None:
    """TensorFlow's SyncReplicasOptimizer drops a gradient whose step has passed."""
    table = sit("k-sync", workers=3, aggregate=2, late="drop")
    table.commit("w0")
    assert kinds(table.commit("w1")) == ["Apply", "Grant"]
    late = table.held["w2"]
    assert table.commit("w2") == [Drop(late, "stale")]
    assert table.version == 1 and "w2" in table.held


def test_k_sync_keeps_its_number_when_workers_join_and_goes_on_when_few_are_left() -> None:
    table = sit("k-sync", workers=3, aggregate=2)
    table.join("w3")
    table.ready("w3")
    table.commit("w0")
    assert "Apply" in kinds(table.commit("w3"))
    for worker in ("w1", "w2", "w3"):
        table.leave(worker)
    assert "Apply" in kinds(table.commit("w0"))
    assert table.version == 2


def test_sync_with_backup_grows_with_its_workers_and_k_sync_does_not() -> None:
    """Where the two differ: `backup` counts who need not come, `aggregate` who must."""
    for name, knobs, versions in (("sync", {"backup": 1}, 0), ("k-sync", {"aggregate": 2}, 1)):
        table = sit(name, workers=3, **knobs)
        table.join("w3")
        table.ready("w3")
        table.commit("w0")
        table.commit("w1")
        assert table.version == versions


def test_k_batch_sync_takes_several_of_one_worker_and_cancels_all_others() -> None:
    table = sit("k-batch-sync", workers=3, aggregate=3)
    table.commit("w0")
    assert not table.waits("w0")
    table.commit("w0")
    decisions = table.commit("w0", again=False)
    assert kinds(decisions) == ["Apply", "Cancel", "Cancel"]
    assert table.authors(table.updates[0]) == ["w0"] * 3
    assert table.staleness == [0, 0, 0]


def test_k_batch_sync_cancels_what_a_contributor_has_begun_anew() -> None:
    table = sit("k-batch-sync", workers=2, aggregate=2)
    table.commit("w0")
    decisions = table.commit("w1", again=False)
    assert [table.owner[d.ticket] for d in decisions if isinstance(d, Cancel)] == ["w0"]


def test_rennala_drops_what_was_begun_before_the_update() -> None:
    table = sit("rennala", workers=3, aggregate=2)
    table.commit("w0")
    table.commit("w0")
    assert table.version == 1 and not table.cancelled
    stale = table.held["w1"]
    assert table.commit("w1") == [Drop(stale, "stale")]
    assert kinds(table.commit("w1")) == ["Fold"]


def test_k_async_waits_for_other_workers_and_takes_them_however_old() -> None:
    table = sit("k-async", workers=3, aggregate=2)
    for _ in range(3):
        table.commit("w0")
        assert table.waits("w0")
        table.commit("w1")
    assert table.version == 3 and not table.cancelled
    table.commit("w2")
    table.commit("w0")
    assert table.staleness[-2:] == [3, 0]
    assert table.authors(table.updates[-1]) == ["w2", "w0"]


def test_k_batch_async_takes_whatever_comes() -> None:
    table = sit("k-batch-async", workers=3, aggregate=2)
    table.commit("w0")
    table.commit("w0")
    table.commit("w1")
    table.commit("w0")
    assert table.staleness == [0, 0, 1, 0]
    assert [u.scale for u in table.updates] == [0.5, 0.5]


@pytest.mark.parametrize(("workers", "n", "size"), [(4, 1, 4), (4, 2, 2), (4, 3, 1), (4, 4, 1), (7, 2, 3)])
def test_softsync_takes_a_share_of_the_workers(workers: int, n: int, size: int) -> None:
    table = sit("softsync", workers=workers, n=n)
    for _ in range(size):
        assert table.version == 0
        table.commit("w0")
    assert table.version == 1


def test_softsync_divides_by_the_staleness() -> None:
    table = sit("softsync", workers=4, n=4)
    for worker in ("w0", "w1", "w2", "w3"):
        table.commit(worker)
    assert [u.parts[0].factor for u in table.updates] == [1.0, 1.0, 1 / 2, 1 / 3]


def test_fedbuff_weighs_by_staleness_and_divides_by_k() -> None:
    table = sit("fedbuff", workers=3, aggregate=2)
    for worker in ("w0", "w0", "w1", "w2"):
        table.commit(worker)
    (first, second) = table.updates
    assert [p.factor for p in first.parts] == [1.0, 1.0]
    assert [p.factor for p in second.parts] == [pytest.approx(2**-0.5)] * 2
    assert (first.scale, second.scale) == (0.5, 0.5)
    assert second.lr_scale == 1.0


def test_fedbuff_may_sum() -> None:
    table = sit("fedbuff", workers=2, aggregate=2, norm="sum")
    table.commit("w0")
    table.commit("w0")
    assert table.updates[0].scale == 1.0


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
    table = sit("delay-adaptive", workers=2, concurrency=2)
    for _ in range(4):
        table.commit("w0")
    table.commit("w1")
    assert [u.lr_scale for u in table.updates] == [1, 1, 1, 1, 2 / 4]
    assert {p.factor for u in table.updates for p in u.parts} == {1.0}


def test_delay_adaptive_takes_the_number_of_workers_for_m() -> None:
    assert Concurrency(3)(6) == 0.5
    table = sit("delay-adaptive", workers=2)
    for _ in range(4):
        table.commit("w0")
    table.commit("w1")
    assert table.updates[-1].lr_scale == 0.5


def test_ringmaster_ignores_what_is_r_versions_old() -> None:
    table = sit("ringmaster", workers=2, threshold=2)
    table.commit("w0")
    table.commit("w1")
    assert table.staleness == [0, 1]
    table.commit("w0")
    table.commit("w0")
    table.commit("w0")
    late = table.held["w1"]
    assert table.commit("w1") == [Drop(late, "stale")]
    assert max(table.staleness) == 1


def test_ringmaster_stops_what_has_become_r_versions_old() -> None:
    table = sit("ringmaster", workers=3, threshold=2, stops=True)
    table.commit("w0")
    assert not table.cancelled
    table.commit("w0")
    assert [table.owner[t] for t in table.cancelled] == ["w1", "w2"]
    table.ready("w1")
    table.commit("w1")
    assert not table.dropped


def test_ringmaster_of_one_is_the_fastest_worker_alone() -> None:
    table = sit("ringmaster", workers=3, threshold=1, stops=True)
    for _ in range(5):
        table.commit("w0")
        table.ready("w1", "w2")
    assert {table.authors(u)[0] for u in table.updates} == {"w0"}


def test_dc_asgd_compensates_all_that_is_stale() -> None:
    table = sit("dc-asgd", workers=2, compensation=0.5)
    assert table.policy.tensors.keep_bases
    table.commit("w0")
    table.commit("w1")
    assert [u.parts[0].compensation for u in table.updates] == [0.0, 0.5]
