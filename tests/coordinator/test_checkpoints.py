"""A checkpoint that fails is an entry of the log, and the next one is due sooner."""

import pytest

from pslab.verify.harness import CoordinatorHarness
from psserver.coordinator import Record
from pswire.decisions import entries


def saved(harness: CoordinatorHarness) -> list[int]:
    """The versions of the checkpoints that were ordered."""
    return [each.entry.version for each in harness.log if isinstance(each.entry, entries.Checkpoint)]


def trains(harness: CoordinatorHarness, versions: int) -> None:
    for _ in range(versions):
        harness.commits("w0")


def fails(harness: CoordinatorHarness, version: int) -> None:
    harness.take(harness.coordinator.unsaved(version, "the disk is full", harness.now))


@pytest.mark.parametrize(("every", "next_one"), [(8, 12), (3, 5), (1, 2)])
def test_the_next_checkpoint_is_due_in_half_the_usual_time(every: int, next_one: int) -> None:
    harness = CoordinatorHarness("async", workers=1, terms={"checkpoint_versions": every}).starts()
    trains(harness, every)
    fails(harness, every)
    last = harness.log[-1]
    assert isinstance(last, Record) and last.entry == entries.Unsaved(every, "the disk is full")
    trains(harness, 2 * every)
    assert saved(harness)[:2] == [every, next_one]


def test_so_it_is_where_time_counts() -> None:
    harness = CoordinatorHarness("async", workers=1, terms={"checkpoint_seconds": 60.0}).starts()
    harness.passes(60.0)
    trains(harness, 1)
    fails(harness, 1)
    harness.passes(30.0)
    trains(harness, 1)
    assert saved(harness) == [1, 2]


def test_a_signal_has_the_version_saved_whose_checkpoint_failed() -> None:
    harness = CoordinatorHarness("async", workers=1, terms={"checkpoint_versions": 8}).starts()
    trains(harness, 8)
    fails(harness, 8)
    harness.take(harness.coordinator.checkpoint(harness.now))
    assert saved(harness) == [8, 8]


def test_an_older_checkpoint_that_fails_moves_nothing() -> None:
    harness = CoordinatorHarness("async", workers=1, terms={"checkpoint_versions": 4}).starts()
    trains(harness, 8)
    fails(harness, 4)
    trains(harness, 4)
    assert saved(harness) == [4, 8, 12]


def test_nothing_is_noted_behind_the_end() -> None:
    harness = CoordinatorHarness("async", workers=1, terms={"checkpoint_versions": 1}).starts()
    trains(harness, 1)
    harness.take(harness.coordinator.stop("a signal", harness.now, success=False, cause="SIGTERM"))
    before = len(harness.log)
    fails(harness, 1)
    assert len(harness.log) == before
