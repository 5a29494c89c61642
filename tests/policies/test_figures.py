"""The literature's figures, on a virtual clock: 8 workers with exponential times of mean 1.

Laws: H_P for a barrier, H_P - H_(P-K) for the first K of P (order statistics of the
exponential); K/P per update when nobody idles (Dutta et al. 2018, lemma 4). Mean staleness from
its conservation. Values without a law are those of an independent simulation.
"""

import heapq
import math
import random
from dataclasses import dataclass

import pytest

from tests.policies.harness import PolicyHarness, start_policy

P = 8


@dataclass(frozen=True)
class Run:
    harness: PolicyHarness
    time_per_update: float

    @property
    def mean_staleness(self) -> float:
        return sum(self.harness.staleness) / len(self.harness.staleness)


def race(updates: int, name: str, **knobs: object) -> Run:
    """Workers compute for exp(1) and start again as soon as they are granted; cancelled work stops at once."""
    dice = random.Random(7)
    harness = start_policy(name, P, **knobs)
    computing: dict[str, int] = {}
    ends: list[tuple[float, int, str]] = []
    now = 0.0

    def start() -> None:
        for worker, ticket in harness.held.items():
            if computing.get(worker) != ticket:
                computing[worker] = ticket
                heapq.heappush(ends, (now + dice.expovariate(1.0), ticket, worker))

    start()
    while harness.version < updates:
        now, ticket, worker = heapq.heappop(ends)
        if harness.held.get(worker) != ticket:
            continue
        cancelled = len(harness.cancelled)
        harness.commit(worker)
        harness.ready(*(harness.owner[t] for t in list(harness.cancelled)[cancelled:]))
        start()
    return Run(harness, now / updates)


def harmonic(n: int) -> float:
    return sum(1 / k for k in range(1, n + 1))


@pytest.mark.parametrize(
    ("name", "knobs", "seconds", "staleness"),
    [
        ("sync", {}, harmonic(P), 0),
        ("sync", {"backup": 2}, harmonic(P) - harmonic(2), 0),
        ("sync", {"backup": 4}, harmonic(P) - harmonic(4), 0),
        ("async", {}, 1 / P, P - 1),
        ("bounded", {"aggregate": 4, "max_staleness": 10**9}, 4 / P, (P - 1) / 4),
        ("bounded", {"aggregate": 1, "max_staleness": 3, "on_stale": "block"}, 0.8922, 0.977),
        ("bounded", {"aggregate": 4, "max_staleness": 3}, 0.5630, 1.065),
        ("ssp", {"slack": 3}, 0.1768, 5.450),
    ],
    ids=["sync", "backup 2", "backup 4", "async", "K = 4", "block 3", "drop 3", "ssp 3"],
)
def test_time_and_staleness_per_update(
    name: str, knobs: dict[str, object], seconds: float, staleness: float
) -> None:
    # Under ssp the workers drift apart slowly.
    run = race(24000 if name == "ssp" else 2000, name, **knobs)
    assert run.time_per_update == pytest.approx(seconds, rel=0.05)
    assert run.mean_staleness == pytest.approx(staleness, rel=0.04)


def test_time_per_clock_of_ssp() -> None:
    """From the barrier's H_P at slack 0 towards 1 without a bound."""
    expected = {0: harmonic(P), 1: 1.79, 2: 1.52, 4: 1.29, 8: 1.15}
    for slack, seconds in expected.items():
        run = race(P * 400, "ssp", slack=slack)
        assert run.time_per_update * P == pytest.approx(seconds, rel=0.05)


def test_async_is_faster_than_sync_by_p_times_h_p() -> None:
    """Dutta et al. 2018, theorem 1; "P log P" is only its limit."""
    ratio = race(1500, "sync").time_per_update / race(6000, "async").time_per_update
    assert ratio == pytest.approx(P * harmonic(P), rel=0.05)
    assert ratio > 1.2 * P * math.log(P)
