"""One bad worker among honest ones: the mean follows it, the median, the trimmed mean and Krum do not.

Yin et al. 2018; Blanchard et al. 2017. The honest minimise f(x) = 1/2 sum_i h_i x_i^2 with a little noise; the
attacker's gradients point to a place a million away.
"""

from typing import Any

import numpy as np
import pytest

from pslab.simulator import build
from pslab.simulator.store import ShardStore
from psserver.decisions import entries
from psserver.policies import PolicyError
from tests.promises import promise
from tests.simulator.lab import Outcome, experiment, simulate

FAR = 1e6


def attacked(policy: str, workers: int = 5, servers: int = 1, attackers: int = 1, **knobs: object) -> Outcome:
    """The last workers are attackers. Everybody has 200 batches."""
    options = {
        "noise": 0.1,
        "condition": 1.0,
        "batches_per_epoch": 200,
        "centres": [0.0] * (workers - attackers) + [FAR] * attackers,
    }
    return simulate(
        experiment(
            policy,
            workers=workers,
            policy_knobs=knobs,
            cluster={"servers": servers},
            optimizer={"name": "sgd", "learning_rate": 0.3},
            simulation={"problem": "quadratic", "compute": "exponential(1)", "options": options},
        )
    )


def distance(run: Outcome) -> float:
    """From the honest workers' optimum."""
    assert isinstance(run.cluster.store, ShardStore)
    return float(np.linalg.norm(run.cluster.store.weights()["x"]))


def test_the_mean_follows_the_attacker() -> None:
    assert distance(attacked("sync")) > FAR / 10
    assert distance(attacked("k-sync", aggregate=4)) > FAR / 100


@promise(
    "Median, trimmed mean and Krum converge beside an attacker whom the mean follows (Yin et al. 2018, "
    "Blanchard et al. 2017)."
)
@pytest.mark.parametrize(
    ("policy", "servers", "knobs"),
    [
        ("median", 1, {}),
        ("median", 3, {}),
        ("trimmed-mean", 2, {"trim": 1}),
        ("trimmed-mean", 1, {"trim": 2}),
        ("krum", 1, {"byzantine": 1}),
        ("krum", 1, {"byzantine": 1, "select": 2}),
    ],
)
def test_the_robust_converge(policy: str, servers: int, knobs: dict[str, Any]) -> None:
    run = attacked(policy, servers=servers, **knobs)
    assert distance(run) < 0.5
    assert run.versions == 200
    verdict = run.verdict()
    assert verdict.violations == (), [str(violation) for violation in verdict.violations]


def test_they_bear_as_many_as_they_promise_and_no_more() -> None:
    assert distance(attacked("trimmed-mean", attackers=2, trim=2)) < 0.5
    assert distance(attacked("trimmed-mean", attackers=2, trim=1)) > FAR / 100
    assert distance(attacked("median", attackers=2)) < 0.5
    assert distance(attacked("median", attackers=3)) > FAR / 100
    assert distance(attacked("krum", workers=7, attackers=2, byzantine=2)) < 0.5


def test_too_few_are_dropped_so_that_the_last_word_is_not_the_attackers() -> None:
    """Two of three honest workers crash: what is left would be the attacker's alone, or half of it."""
    options = {"noise": 0.1, "condition": 1.0, "batches_per_epoch": 60, "centres": [0.0, 0.0, 0.0, FAR]}
    crashes = [{"worker": worker, "at": 20.0} for worker in (0, 1)]

    def run(policy: str, **knobs: Any) -> Outcome:
        return simulate(
            experiment(
                policy,
                workers=4,
                policy_knobs=knobs,
                cluster={"worker_timeout": 2.0},
                optimizer={"name": "sgd", "learning_rate": 0.3},
                simulation={"problem": "quadratic", "compute": "constant(1)", "options": options},
                faults={"crashes": crashes},
            )
        )

    trimmed = run("trimmed-mean")
    dropped = [e for e in trimmed.entries if isinstance(e, entries.Drop) and e.reason == "too few"]
    assert len(dropped) > 50 and {e.worker for e in dropped} == {"w2", "w3"}
    assert distance(trimmed) < 0.5
    assert trimmed.verdict().violations == ()
    assert distance(run("median")) < 0.5
    # Of two it would be the mean.
    assert distance(run("median", fewest=1)) > FAR / 100


def test_krum_is_refused_on_two_servers_before_anything_runs() -> None:
    with pytest.raises(
        PolicyError, match="krum compares whole gradients, and with 2 servers each holds only"
    ):
        build(experiment("krum", workers=5, cluster={"servers": 2}, simulation={"problem": "quadratic"}))
