"""Sums over all workers at the end of an epoch: counted once, waited for by nobody who cannot come."""

import math

import pytest

from pslab.verify.harness import CoordinatorHarness
from psserver.coordinator import inputs
from psserver.coordinator.epochs import (
    MAX_LAYOUTS,
    MAX_ROUNDS,
    MAX_SUMS,
    EpochError,
    EpochReport,
    EpochSums,
    Totals,
)
from tests.promises import promise
from tests.sentences import Recorder

LIMIT = 600.0


class Epochs:
    """Reports of the workers of a job under `sync`, which have their first tickets."""

    def __init__(self, workers: int = 2, policy: str = "sync") -> None:
        self.harness = CoordinatorHarness(policy, workers=workers).starts()
        self.sums = EpochSums(LIMIT, self.harness.now)

    def awaited(self) -> str | None:
        found = self.sums.awaited(self.harness.coordinator.state.roster, self.harness.now)
        return found and found[0]

    def report(
        self,
        worker: str,
        number: int = 0,
        *sums: float,
        layout: str = "m",
        yields: bool = False,
        over: bool = False,
        **values: float,
    ) -> Totals:
        roster = self.harness.coordinator.state.roster
        told = EpochReport(number, layout, sums or (1.0, 2.0), values, yields)
        return self.sums.add(roster.present[worker], told, roster, self.harness.now, over=over)


@promise("Sums at the end of an epoch contain each worker once.")
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


def test_who_can_yield_is_told_to_until_the_longer_epoch_is_over() -> None:
    epochs = Epochs(3)
    for worker in ("w0", "w1"):
        assert not epochs.report(worker, yields=True).held_up
    epochs.harness.commits("w2")
    for worker in ("w0", "w1"):
        totals = epochs.report(worker, yields=True)
        assert totals.held_up and not totals.complete
        epochs.harness.commits(worker, samples=0)
    # A version is made, everybody has a ticket again, and w2 comes to its end.
    assert epochs.harness.coordinator.state.version == 1
    assert not epochs.report("w0", yields=True).held_up
    totals = epochs.report("w2", yields=True)
    assert totals.complete and not totals.held_up and totals.workers == {"w0", "w1", "w2"}


def test_behind_the_end_those_who_are_done_are_waited_for_until_they_leave() -> None:
    epochs = Epochs(3)
    for worker in ("w0", "w1", "w2"):
        epochs.harness.done(worker)
    assert not epochs.report("w0", over=True).complete
    assert not epochs.report("w1", over=True).complete
    epochs.harness.leaves("w2")
    assert epochs.report("w0", over=True).workers == {"w0", "w1"}
    assert epochs.report("w0", over=True).complete


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
    for number in range(MAX_ROUNDS + 1):
        epochs.report("w0", number)
        epochs.report("w1", number)
    old = epochs.report("w0", 0, 3.0, 4.0)
    assert old.complete and old.sums == [3.0, 4.0] and old.workers == {"w0"}
    # It was in no round: the next is whole.
    assert not epochs.report("w0", MAX_ROUNDS + 1).complete
    assert epochs.report("w1", MAX_ROUNDS + 1).workers == {"w0", "w1"}


def test_a_silent_member_is_named_and_waited_for_once(sentences: Recorder) -> None:
    """Under async it keeps its ticket, or asks for none; w0 and w1 report and ask again."""
    epochs = Epochs(3, "async")
    assert epochs.awaited() is None
    epochs.report("w0", 0)
    sentences.check(epochs.awaited())
    epochs.report("w1", 0)
    sentences.check(epochs.awaited())
    epochs.harness.now += LIMIT - 1
    assert not epochs.report("w0", 0).complete and not epochs.report("w1", 0).complete
    epochs.harness.now += 1
    for worker in ("w0", "w1"):
        totals = epochs.report(worker, 0)
        assert totals.complete and totals.workers == {"w0", "w1"}
    assert epochs.awaited() is None
    for number in range(1, 4):
        assert not epochs.report("w0", number).complete
        assert epochs.report("w1", number).workers == {"w0", "w1"}
        assert epochs.report("w0", number).complete
    # Who reports takes part again.
    epochs.report("w2", 0)
    epochs.report("w0", 4)
    assert not epochs.report("w1", 4).complete
    assert epochs.report("w2", 1).workers == {"w0", "w1", "w2"}


def test_who_only_joined_is_not_waited_for() -> None:
    epochs = Epochs(2, "async")
    epochs.harness.coordinator.take(inputs.JoinAsked("liar", "L", None), epochs.harness.now)
    epochs.report("w0", 0)
    assert epochs.report("w1", 0).complete


def test_who_goes_on_working_is_waited_for_longer_but_not_for_ever() -> None:
    epochs = Epochs(2, "async")
    hour = 3600.0
    epochs.harness.now += hour
    epochs.report("w0", 0)
    for waited in range(1, 5 * 60 + 1):
        assert not epochs.report("w0", 0).complete, waited
        epochs.harness.commits("w1")
        epochs.harness.ready("w1")
        epochs.harness.now += 60.0
    totals = epochs.report("w0", 0)
    assert totals.complete and totals.workers == {"w0"}


def test_who_reports_early_makes_nobody_else_late() -> None:
    """A liar's report at the beginning of a long epoch: it alone is answered alone."""
    epochs = Epochs(3, "async")
    epochs.report("w2", 0)
    epochs.harness.now += 10 * LIMIT
    assert epochs.report("w2", 0).complete
    assert not epochs.report("w0", 0).complete
    assert epochs.report("w2", 1).workers == {"w2"}
    assert not epochs.report("w0", 0).complete
    assert epochs.report("w1", 0).workers == {"w0", "w1", "w2"}
    assert epochs.report("w0", 0).complete


@pytest.mark.parametrize("policy", ["async", "sync"])
@pytest.mark.parametrize("jump", [1, 1000, 2**40])
@pytest.mark.parametrize("rounds", range(1, 8))
def test_jumps_of_one_member_leave_the_rounds_of_the_others_whole(
    policy: str, jump: int, rounds: int
) -> None:
    """Under sync the liar w0 keeps its ticket, and the others wait for that: its rounds are complete at once."""
    epochs = Epochs(3, policy)
    epochs.report("w0", 0)
    epochs.report("w1", 0)
    epochs.report("w2", 0)
    if policy == "sync":
        for worker in ("w1", "w2"):
            epochs.harness.commits(worker)
            epochs.harness.ready(worker)
    for number in range(1, rounds + 1):
        epochs.report("w0", number * jump)
    if policy == "sync":
        epochs.harness.commits("w0")
    for number in (1, 2, 3):
        epochs.report("w1", number)
        assert {"w1", "w2"} <= epochs.report("w2", number).workers
        epochs.report("w0", (rounds + number) * jump)
        totals = epochs.report("w1", number)
        assert totals.complete and {"w1", "w2"} <= totals.workers


def test_who_is_late_finds_the_round_of_many_whoever_ran_ahead_since() -> None:
    epochs = Epochs(3)
    epochs.harness.commits("w2")
    epochs.harness.ready("w2")
    epochs.report("w0", 0)
    assert epochs.report("w1", 0).complete
    epochs.harness.commits("w1")
    epochs.harness.ready("w1")
    for number in range(1, 2 * MAX_ROUNDS):
        assert epochs.report("w0", number).workers == {"w0"}
    epochs.harness.commits("w0")
    assert epochs.report("w2", 0).workers == {"w0", "w1", "w2"}


def test_a_value_that_is_no_number_gives_way() -> None:
    epochs = Epochs(2)
    epochs.report("w0", 0, val_loss=math.nan)
    assert epochs.report("w1", 0, val_loss=0.25).values == {"val_loss": 0.25}


def test_other_metrics_are_added_up_apart_and_end_nobody() -> None:
    """The first one's metrics are not those of the others; nor are they always as many."""
    epochs = Epochs(4)
    epochs.report("w0", 0, 9.0, 9.0, layout="lie", val_loss=0.0)
    epochs.report("w1", 0, 1.0, 2.0, val_loss=0.5)
    epochs.report("w2", 0, 7.0)
    epochs.report("w3", 0, 5.0, 5.0)
    for worker, sums, workers in (
        ("w0", [9.0, 9.0], {"w0"}),
        ("w1", [6.0, 7.0], {"w1", "w3"}),
        ("w2", [7.0], {"w2"}),
        ("w3", [6.0, 7.0], {"w1", "w3"}),
    ):
        totals = epochs.report(worker, 0, *([1.0] * len(sums)), layout="lie" if worker == "w0" else "m")
        assert totals.complete and totals.sums == sums and totals.workers == workers
        assert totals.differing == {"w0", "w1", "w2", "w3"} - workers
    assert epochs.report("w1", 0).values == {"val_loss": 0.5}


def test_there_is_room_for_few_kinds_of_metrics() -> None:
    epochs = Epochs(MAX_LAYOUTS + 2)
    for number in range(MAX_LAYOUTS + 1):
        epochs.report(f"w{number}", 0, 1.0, layout=str(number))
    last = epochs.report(f"w{MAX_LAYOUTS}", 0, 3.0, layout=str(MAX_LAYOUTS))
    assert last.complete and last.sums == [3.0]
    assert not epochs.report("w0", 0, 1.0, layout="0").complete
    assert epochs.report(f"w{MAX_LAYOUTS + 1}", 0, 1.0, layout="0").sums == [2.0]
    # Another kind at the second asking changes nothing.
    assert epochs.report("w1", 0, 1.0, layout="0").workers == {"w1"}
    assert epochs.report("w0", 0, 1.0, layout="0").sums == [2.0]


def test_too_many_sums_are_refused_with_nothing_counted(sentences: Recorder) -> None:
    epochs = Epochs(2)
    epochs.report("w0", 0, 1.0, 2.0)
    with pytest.raises(EpochError) as refused:
        epochs.report("w1", 0, *([0.0] * (MAX_SUMS + 1)))
    sentences.check(refused)
    assert epochs.report("w1", 0, 5.0, 5.0).sums == [6.0, 7.0]


def chiefs(epochs: Epochs, *workers: str, number: int) -> str:
    """Who acts for all when these have told of their epoch."""
    for worker in workers:
        epochs.report(worker, number)
    return epochs.sums.chief


def test_another_worker_takes_over_what_is_done_once_for_all() -> None:
    epochs = Epochs(3)
    assert epochs.sums.chief == ""
    assert chiefs(epochs, "w2", "w1", number=0) == ""
    assert chiefs(epochs, "w0", number=0) == "w0"
    epochs.harness.leaves("w0")
    # Until the end of an epoch, so that all hear of it at the same place.
    assert epochs.sums.chief == "w0"
    assert chiefs(epochs, "w2", "w1", number=1) == "w1"
    # It keeps it when another worker 0 comes, and as long as it is here.
    epochs.harness.joins("w0", "B")
    epochs.harness.ready("w0")
    assert chiefs(epochs, "w2", "w1", number=2) == "w1"
    epochs.report("w0", 0)
    epochs.harness.done("w1")
    assert epochs.sums.chief == "w1"
    epochs.report("w0", 1)
    assert chiefs(epochs, "w2", number=3) == "w0"


def test_a_worker_0_that_came_back_before_anybody_took_over_acts_again() -> None:
    epochs = Epochs(2, "async")
    assert chiefs(epochs, "w0", "w1", number=0) == "w0"
    epochs.harness.joins("w0", "B")
    epochs.harness.ready("w0")
    epochs.report("w1", 1)
    assert chiefs(epochs, "w0", number=0) == "w0"


def test_who_is_late_because_others_hold_it_up_keeps_what_is_done_once() -> None:
    """Worker 0 has a longer epoch and waits for a ticket; a silent one has lost it."""
    epochs = Epochs(2)
    epochs.harness.commits("w0")
    epochs.harness.ready("w0")
    assert chiefs(epochs, "w1", number=0) == "w0"
    silent = Epochs(2, "async")
    silent.report("w1", 0)
    silent.harness.now += LIMIT
    assert chiefs(silent, "w1", number=0) == "w1"


def test_without_a_worker_0_the_first_of_those_who_came_acts() -> None:
    epochs = Epochs(3)
    epochs.harness.leaves("w0")
    assert chiefs(epochs, "w1", "w2", number=0) == "w1"
