"""How `scripts/bench fit` sums up its rounds."""

from benchmarks.fit.samples import Samples, ratio


def test_a_step_is_the_median_of_the_rounds() -> None:
    found = Samples(100, wall=[3.0, 1.0, 2.0], cpu=[0.5, 0.5, 0.7], server=[0.1, 0.2, 0.3])
    assert found.per_step().strip() == "20.00 ms a step (CPU 5.00, server 2.00)"
    assert Samples(100, wall=[1.0]).per_step().strip() == "10.00 ms a step"


def test_a_ratio_is_taken_within_each_round() -> None:
    """A round in which the machine was busy slows both."""
    plain, ours = Samples(10, wall=[1.0, 10.0, 1.2]), Samples(10, wall=[2.0, 20.0, 1.2])
    assert ratio(plain, ours) == "0.50 (0.50 to 1.00)"
