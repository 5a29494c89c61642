"""Exact laws and theorems on simulated logs; `tests/papers` has those that hold of bare policies.

A soak has the lengths and tolerances of figures, the usual run a quarter of the lengths.
"""

import math

import numpy as np
import pytest

from pswire.decisions import entries
from tests.promises import promise
from tests.repetitions import repetitions, usually
from tests.simulator.lab import Outcome, experiment, long, near, simulate, timed

pytestmark = pytest.mark.nightly


def harmonic(n: int) -> float:
    return sum(1 / k for k in range(1, n + 1))


@promise(
    "A barrier takes H_P times the mean for exponential times; Delta + H_P when shifted; the greatest of P for"
    " Pareto (Dutta et al. 2018)."
)
@pytest.mark.parametrize("workers", [2, 5, 16])
def test_the_barrier_costs_a_harmonic_number(workers: int) -> None:
    """The slowest of P exp(1) steps takes H_P on average (Dutta et al. 2018, order statistics)."""
    run = timed("sync", workers=workers, versions=long(3000))
    assert run.seconds_per_version == pytest.approx(harmonic(workers), rel=near(3))


def test_shifted_exponential_and_pareto_barriers() -> None:
    """Delta + exp: Delta + H_P. Pareto(2, 1): G(P+1) G(1/2) / G(P+1/2), the mean of the greatest of P."""
    simulation = {"compute": "shifted_exponential(1, 1)"}
    shifted = timed("sync", workers=8, versions=long(3000), simulation=simulation)
    assert shifted.seconds_per_version == pytest.approx(1 + harmonic(8), rel=near(2))
    versions = repetitions(1500, soak=20_000)
    pareto = timed("sync", workers=8, versions=versions, simulation={"compute": "pareto(3, 1)"})
    expected = math.gamma(9) * math.gamma(1 - 1 / 3) / math.gamma(9 - 1 / 3)
    assert pareto.seconds_per_version == pytest.approx(expected, rel=near(3))


@pytest.mark.parametrize(
    ("policy", "knobs", "growth"),
    [
        ("sync", {}, 0),
        ("async", {}, 7),
        ("ssp", {"slack": 10_000}, 7),
        ("bounded", {"aggregate": 4, "max_staleness": 10_000}, 7),
    ],
)
def test_staleness_is_conserved(policy: str, knobs: dict[str, int], growth: int) -> None:
    """sum of staleness + ages in flight = (n - 1) T, as integers, with workers ten times as fast as others."""
    factors = {"0": 10.0, "1": 3.0}
    run = timed(policy, workers=8, versions=400, policy_knobs=knobs, simulation={"factors": factors})
    law = run.law()
    assert law.holds and law.dropped == 0
    # While all eight hold tickets; the stop takes them back, and with them their ages.
    assert law.applied + law.given_up + law.in_flight == growth * run.versions


def test_only_the_maximum_feels_a_straggler() -> None:
    even = timed("async", workers=8, versions=long(4000))
    uneven = timed("async", workers=8, versions=long(4000), simulation={"factors": {"0": 50.0}})
    assert uneven.mean_staleness == pytest.approx(even.mean_staleness, rel=near(2))
    assert uneven.max_staleness > 3 * even.max_staleness


def gap(run: Outcome) -> int:
    """The greatest difference of clocks between a worker that starts and the slowest one."""
    clocks = {f"w{index}": 0 for index in range(run.cluster.terms.workers)}
    worst = 0
    for entry in run.log():
        if entry.kind == "grant":
            worst = max(worst, clocks[entry.fact.worker] - min(clocks.values()))
        elif entry.kind == "commit":
            clocks[entry.fact.worker] += 1
    return worst


def test_ssp_cannot_beat_a_persistent_straggler() -> None:
    """Slack hides spikes, not a slow machine: in the long run everybody goes at its pace (Ho et al. 2013)."""
    factors = {"0": 10.0}
    run = timed(
        "ssp",
        workers=4,
        versions=long(4000),
        policy_knobs={"slack": 3},
        simulation={"compute": "constant(1)", "factors": factors},
    )
    # Four commits (one of each worker) per ten seconds of the straggler.
    assert run.seconds_per_version == pytest.approx(10 / 4, rel=near(1))
    assert gap(run) == 3
    simulation = {"compute": "constant(1)", "factors": factors}
    free = timed("async", workers=4, versions=long(4000), simulation=simulation)
    assert free.seconds_per_version == pytest.approx(1 / 3.1, rel=0.01)


def test_ssp_does_hide_spikes() -> None:
    bsp = timed("ssp", workers=8, versions=long(4000), policy_knobs={"slack": 0})
    ssp = timed("ssp", workers=8, versions=long(4000), policy_knobs={"slack": 3})
    assert gap(bsp) == 0 and gap(ssp) == 3
    assert ssp.seconds < 0.7 * bsp.seconds


@pytest.mark.parametrize("tau", usually([0, 3], soak=[1, 7]))
def test_constant_delay_stability_threshold(tau: int) -> None:
    """x <- x - a h x(t - tau) is stable for a h < 2 sin(pi / (2 (2 tau + 1))): to three digits."""
    threshold = 2 * math.sin(math.pi / (2 * (2 * tau + 1)))

    def grows(rate: float) -> bool:
        run = simulate(
            experiment(
                "async",
                workers=tau + 1,
                run={"versions": 2000},
                job={"module": "none:none", "epochs": 20},
                optimizer={"name": "sgd", "learning_rate": rate},
                simulation={
                    "problem": "quadratic",
                    "options": {"dimensions": 1, "condition": 1.0},
                    "compute": "constant(1)",
                },
            )
        )
        # The first round starts together; from then on every gradient is exactly tau versions old.
        assert run.histogram[tau] >= run.versions - tau
        losses = [entry.loss for entry in run.entries if isinstance(entry, entries.Commit)]
        return max(losses[-500:]) > max(losses[1000:1500])

    assert not grows(0.999 * threshold)
    assert grows(1.001 * threshold)


def test_async_with_different_data_has_a_bias() -> None:
    """x goes to sum r h c / sum r h with push rates r, not to the optimum; sync has no such bias."""
    centres, speeds = [2.0, 1.5, 0.7, 0.2], [1.0, 2.0, 4.0, 8.0]
    rates = np.array(speeds)
    predicted = float(rates @ np.array(centres) / rates.sum())

    def end(policy: str) -> float:
        run = simulate(
            experiment(
                policy,
                workers=4,
                run={"versions": long(6000)},
                job={"module": "none:none", "epochs": 100},
                optimizer={"name": "sgd", "learning_rate": 0.01},
                simulation={
                    "problem": "quadratic",
                    "options": {"dimensions": 1, "condition": 1.0, "centres": centres, "start": 0.0},
                    "compute": "exponential(1)",
                    "factors": {str(worker): 1 / speed for worker, speed in enumerate(speeds)},
                },
            )
        )
        return float(run.cluster.store.weights()["x"][0])  # type: ignore[attr-defined]

    assert end("async") == pytest.approx(predicted, abs=0.08)
    assert end("sync") == pytest.approx(float(np.mean(centres)), abs=0.01)
