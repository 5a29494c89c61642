"""How `scripts/bench fit` sums up its rounds."""

from benchmarks.fit.cli import per_step, ratio


def test_a_step_is_the_median_of_the_rounds() -> None:
    found = per_step([(3.0, 0.5, 0.1), (1.0, 0.5, 0.2), (2.0, 0.7, 0.3)], 100)
    assert found.strip() == "20.00 ms a step (CPU 5.00, server 2.00)"
    assert per_step([(1.0,)], 100).strip() == "10.00 ms a step"


def test_a_ratio_is_taken_within_each_round() -> None:
    """A round in which the machine was busy slows both."""
    plain, ours = [(1.0,), (10.0,), (1.2,)], [(2.0,), (20.0,), (1.2,)]
    assert ratio(plain, ours) == "0.50 (0.50 to 1.00)"
