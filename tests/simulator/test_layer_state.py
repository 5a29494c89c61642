"""State of layers under every policy: it stays between what workers saw, moves, and is shared by all workers."""

import math
from typing import Any

import pytest

from psserver.policies import PolicyError, names
from tests.promises import promise
from tests.simulator.layer_state import MEAN, SPREAD, Averaging, last, run

# Of float32, and of the sums of contributions.
ROUNDING = 1e-5


def stays_between(policy: str, workers: int, rate: float, rounding: float = ROUNDING, **more: Any) -> None:
    """Workers see their batches and the first state, 0, and what is made of these."""
    trainer = Averaging(rate, 30)
    try:
        outcome = run(policy, workers, trainer, **more)
    except PolicyError:
        # So few workers, or that codec, are not for this policy.
        assert policy in ("krum", "trimmed-mean", "easgd", "sync")
        return
    least, greatest = trainer.seen
    assert (least, greatest) == (0, pytest.approx(MEAN + SPREAD, abs=0.2))
    assert trainer.largest <= greatest + rounding
    assert least - rounding <= last(outcome) <= greatest + rounding
    assert outcome.verdict().ok


@promise("Layers' state stays between the values that workers saw, under every policy, delay and rate.")
@pytest.mark.parametrize("policy", names())
@pytest.mark.parametrize("rate", [0.1, 1.0])
@pytest.mark.parametrize("workers", [2, 8])
def test_state_stays_between_what_workers_saw(policy: str, workers: int, rate: float) -> None:
    stays_between(policy, workers, rate)


@pytest.mark.parametrize(
    ("policy", "knobs"),
    [
        ("async", {}),
        ("bounded", {"on_stale": "downweight", "aggregate": 2, "max_staleness": 0}),
        ("bounded", {"on_stale": "block", "max_staleness": 3}),
        ("fedbuff", {"norm": "sum"}),
        ("k-async", {"aggregate": 3}),
        ("sync", {"backup": 2}),
        ("easgd", {"alpha": 0.9, "steps": 3}),
        ("diloco", {"fragments": 2, "overlap": 1, "mixing": 0.5, "steps": 3}),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("wire", "rounding"), [("float32", ROUNDING), ("bfloat16", 0.02), ("int8/int4", 1e-4)]
)
def test_on_any_wire_and_beside_a_worker_that_is_always_late(
    policy: str, knobs: dict[str, Any], wire: str, rounding: float
) -> None:
    cluster = {"servers": 2, "wire_dtype": wire}
    for rate in (0.3, 1.0):
        stays_between(
            *(policy, 6, rate, rounding),
            policy_knobs=knobs,
            cluster=cluster,
            delays={5: "constant(40)"},
        )


@pytest.mark.parametrize("workers", [2, 8])
@pytest.mark.parametrize("rate", [0.01, 0.1, 0.3])
def test_async_moves_state_nearly_as_fast_as_sync_for_each_batch(workers: int, rate: float) -> None:
    """Workers of equal speed: staleness n - 1, weight n / (2 n - 1). A batch moves state by rate / (n + 1 - 1 / n) of
    its distance, and by rate / n under sync."""
    batches = round(2 / rate)
    left = {}
    for policy in ("sync", "async"):
        trainer = Averaging(rate, batches, spread=0.0)
        left[policy] = math.log(MEAN - last(run(policy, workers, trainer, compute="constant(1)")))
    expected = workers / (workers + 1 - 1 / workers)
    assert left["sync"] == pytest.approx(batches * math.log(1 - rate), rel=1e-3)
    assert expected - 0.02 <= left["async"] / left["sync"] <= 1


def test_state_is_of_all_workers_and_not_of_the_last_one() -> None:
    """Two kinds of data. The last value alone would be 0 or 2."""
    for policy in ("sync", "async", "bounded", "fedbuff"):
        trainer = Averaging(0.1, 120, means=(0.0, 2.0), spread=0.0)
        # While all are at work: who trains alone at the end moves it alone.
        versions = {"versions": 50 if policy == "sync" else 250}
        assert last(run(policy, 8, trainer, **{"run": versions})) == pytest.approx(1, abs=0.35), policy
