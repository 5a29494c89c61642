"""Sums over all workers at the end of an epoch: counted once, waited for by nobody who cannot come."""

import math

import pytest

from pslab.verify.harness import CoordinatorHarness
from psserver.coordinator.epochs import MOST_ROUNDS, MOST_SUMS, EpochError, EpochSums, Report, Totals


class Epochs:
    """Reports of the workers of a job under `sync`, which have their first tickets."""

    def __init__(self, workers: int = 2, policy: str = "sync") -> None:
        self.harness = CoordinatorHarness(policy, workers=workers).starts()
        self.sums = EpochSums()

    def report(
        self, worker: str, number: int = 0, *sums: float, layout: str = "m", **values: float
    ) -> Totals:
        roster = self.harness.coordinator.roster
        told = Report(number, layout, sums or (1.0, 2.0), values)
        return self.sums.add(roster.present[worker], told, roster.by_rank())


def test_sums_are_of_all_workers_and_of_each_once() -> None:
    epochs = Epochs(3)
    assert not epochs.report("w0", 0, 1.0, 10.0, val_loss=0.5).complete
    assert not epochs.report("w0", 0, 1.0, 10.0, val_loss=0.7).complete  # asks again
    assert not epochs.report("w1", 0, 2.0, 20.0, val_loss=9.0).complete
    for worker in ("w2", "w0", "w1", "w2"):
        totals = epochs.report(worker, 0, 4.0, 40.0)
        assert totals.complete
        assert (totals.sums, totals.values, len(totals.workers)) == ([7.0, 70.0], {"val_loss": 0.5}, 3)


def test_who_is_done_or_has_left_is_not_waited_for() -> None:
    epochs = Epochs(3)
    assert not epochs.report("w0").complete
    epochs.harness.done("w1")
    assert not epochs.report("w0").complete
    epochs.harness.leaves("w2")
    totals = epochs.report("w0")
    assert totals.complete and totals.workers == {"w0"}


def test_who_waits_for_a_ticket_that_is_held_here_is_not_waited_for() -> None:
    """w1 has a longer epoch: under a barrier it cannot go on before w0 does."""
    epochs = Epochs(2)
    assert not epochs.report("w0").complete
    epochs.harness.commits("w1")
    assert epochs.report("w0").complete
    epochs.harness.commits("w0")
    # The late one has the sums of both.
    late = epochs.report("w1")
    assert late.complete and late.workers == {"w0", "w1"} and late.sums == [2.0, 4.0]


def test_a_newcomer_takes_part_in_the_round_that_waits() -> None:
    epochs = Epochs(2, "async")
    for number in range(5):
        epochs.report("w0", number)
        assert epochs.report("w1", number).complete
    epochs.harness.joins("w2")
    epochs.harness.ready("w2")
    assert not epochs.report("w0", 5).complete
    assert not epochs.report("w1", 5).complete
    assert epochs.report("w2", 0).workers == {"w0", "w1", "w2"}
    # Another incarnation of w1 counts from 0 again.
    epochs.harness.joins("w1", "B")
    epochs.report("w0", 6)
    epochs.report("w2", 1)
    assert epochs.report("w1", 0).workers == {"w0", "w1", "w2"}


def test_what_is_long_past_is_ones_own() -> None:
    epochs = Epochs(2, "async")
    for number in range(MOST_ROUNDS + 1):
        epochs.report("w0", number)
    epochs.report("w1", MOST_ROUNDS)
    old = epochs.report("w0", 0, 3.0, 4.0)
    assert old.complete and old.sums == [3.0, 4.0] and old.workers == {"w0"}


def test_a_value_that_is_no_number_gives_way() -> None:
    epochs = Epochs(2)
    epochs.report("w0", 0, val_loss=math.nan)
    assert epochs.report("w1", 0, val_loss=0.25).values == {"val_loss": 0.25}


def test_other_metrics_and_too_many_are_refused_with_nothing_counted() -> None:
    epochs = Epochs(2)
    epochs.report("w0", 0, 1.0, 2.0)
    with pytest.raises(EpochError, match="compile all workers' models with the same metrics"):
        epochs.report("w1", 0, 1.0, 2.0, layout="other")
    with pytest.raises(EpochError, match="same metrics"):
        epochs.report("w1", 0, 1.0)
    with pytest.raises(EpochError, match="at most 65536 sums"):
        epochs.report("w1", 0, *([0.0] * (MOST_SUMS + 1)))
    assert epochs.report("w1", 0, 5.0, 5.0).sums == [6.0, 7.0]
