"""The further policies one by one: what a few facts must lead to, and which knobs are refused."""

import pytest

from psserver.policies.parts.weights import FAMILIES, Concurrency
from tests.policies.harness import start_policy


def test_sync_with_backup_grows_with_its_workers_and_k_sync_does_not() -> None:
    """Where the two differ: `backup` counts who need not come, `aggregate` who must."""
    for name, knobs, versions in (("sync", {"backup": 1}, 0), ("k-sync", {"aggregate": 2}, 1)):
        harness = start_policy(name, workers=3, **knobs)
        harness.join("w3")
        harness.ready("w3")
        harness.commit("w0")
        harness.commit("w1")
        assert harness.version == versions


@pytest.mark.parametrize(("workers", "n", "size"), [(4, 1, 4), (4, 2, 2), (4, 3, 1), (4, 4, 1), (7, 2, 3)])
def test_softsync_takes_a_share_of_the_workers(workers: int, n: int, size: int) -> None:
    harness = start_policy("softsync", workers=workers, n=n)
    for _ in range(size):
        assert harness.version == 0
        harness.commit("w0")
    assert harness.version == 1


@pytest.mark.parametrize(
    ("family", "weights"),
    [
        ("const", [1, 1, 1, 1]),
        ("inverse", [1, 1, 1 / 2, 1 / 5]),
        ("polynomial", [1, 2**-10.0, 3**-10.0, 6**-10.0]),
        # Xie et al. 2019 with a = 10, b = 4: it falls from 1 to 1/11 in one step.
        ("hinge", [1, 1, 1, 1 / 11]),
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


def test_delay_adaptive_takes_the_number_of_workers_for_m() -> None:
    assert Concurrency(3)(6) == 0.5
    harness = start_policy("delay-adaptive", workers=2)
    for _ in range(4):
        harness.commit("w0")
    harness.commit("w1")
    assert harness.updates[-1].lr_scale == 0.5
