"""State of layers under every policy: it stays between what workers saw, moves, and is shared by all workers."""

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
