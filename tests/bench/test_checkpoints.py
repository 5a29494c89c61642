"""What a checkpoint costs: made of the times of steps before it and beside it."""

from benchmarks.availability.checkpoints import cost
from benchmarks.availability.running import Step


def test_steps_beside_a_checkpoint_are_held_against_those_before_it():
    ends = [(1.0, 1.0), (2.0, 1.0), (3.5, 1.5), (4.5, 1.0), (7.0, 2.5), (8.25, 1.25), (9.25, 1.0)]
    found = cost([Step(*each) for each in ends], 4.5, 8.0, 300, 2.0, 7)
    assert (found.usual, found.seconds, found.steps) == (1.0, 3.5, 2)
    assert (found.pause, found.lost) == (1.5, 1.75)
    assert "1.500 s" in found.text() and "2.9% of the time with one each minute" in found.text()
