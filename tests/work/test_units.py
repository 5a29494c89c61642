"""How data is divided: every sample is in one unit of each epoch, the same on every worker."""

import numpy as np
import pytest

from psworker.work import WorkUnits


def epoch(work: WorkUnits, number: int, seed: int = 3) -> list[list[int]]:
    return [work.of(number, unit, seed).indices.tolist() for unit in range(work.count)]


@pytest.mark.parametrize("shuffle", [True, False, "units"])
@pytest.mark.parametrize(
    "work", [{"samples": 1}, {"samples": 32}, {"samples": 100, "unit": 30, "batch_size": 7}, {"units": 9}]
)
def test_every_sample_is_in_one_unit_of_each_epoch(work: dict[str, int], shuffle: bool) -> None:
    made = WorkUnits(**work, shuffle=shuffle)
    for number in range(3):
        found = sorted(index for unit in epoch(made, number) for index in unit)
        assert found == list(range(work.get("samples") or work["units"]))


def test_each_epoch_has_an_order_of_its_own_which_the_seed_decides() -> None:
    work = WorkUnits(samples=50, batch_size=10)
    assert epoch(work, 0) == epoch(WorkUnits(samples=50, batch_size=10), 0)
    assert epoch(work, 0) != epoch(work, 1) != epoch(work, 0, seed=4)
    own = WorkUnits(samples=50, batch_size=10, seed=3)
    assert epoch(own, 1, seed=99) == epoch(work, 1, seed=3)


def test_units_are_found_in_any_order() -> None:
    """Epochs overlap, and what was lost is dealt again later."""
    work = WorkUnits(samples=50, batch_size=10)
    before = [epoch(work, number) for number in range(5)]
    assert [epoch(work, number) for number in (4, 0, 3, 1, 2)] == [before[n] for n in (4, 0, 3, 1, 2)]


def test_neighbours_stay_together_where_units_are_shuffled() -> None:
    work = WorkUnits(samples=25, unit=10, shuffle="units")
    assert sorted(epoch(work, 0)) == [list(range(10)), list(range(10, 20)), list(range(20, 25))]
    assert epoch(work, 0) != epoch(work, 1) or epoch(work, 1) != epoch(work, 2)


def test_files_have_names_and_numbers() -> None:
    work = WorkUnits(files=["a", "b", "c"], shuffle=False)
    units = [work.of(0, number, 0) for number in range(3)]
    assert [(unit.file, unit.index) for unit in units] == [("a", 0), ("b", 1), ("c", 2)]
    assert (work.count, work.batches_each) == (3, 0)


def test_a_unit_cuts_arrays_into_batches() -> None:
    x, y = np.arange(20) * 10, np.arange(20)
    unit = WorkUnits(samples=20, unit=10, batch_size=4, shuffle=False).of(0, 1, 0)
    batches = list(unit.batches(x, y))
    assert [len(labels) for _, labels in batches] == [4, 4, 2]
    assert all((images == labels * 10).all() for images, labels in batches)
    (alone, *_) = unit.batches(y)
    assert alone.tolist() == [10, 11, 12, 13]


@pytest.mark.parametrize(
    ("given", "batches"),
    [
        ({"samples": 100}, (4, 1)),
        ({"samples": 100, "batch_size": 10, "unit": 25}, (4, 3)),
        ({"units": 7, "batches": 2}, (7, 2)),
    ],
)
def test_what_the_coordinator_is_told(given: dict[str, int], batches: tuple[int, int]) -> None:
    work = WorkUnits(**given)
    assert (work.count, work.batches_each) == batches


def test_what_two_workers_must_agree_on() -> None:
    """Not the folder of a file, which may differ from machine to machine."""
    assert str(WorkUnits(files=["/a/x", "/a/y"])) == str(WorkUnits(files=["/b/x", "/b/y"]))
    said = [
        *(WorkUnits(files=["x", "z"]), WorkUnits(files=["z", "x"]), WorkUnits(samples=5), WorkUnits(units=5)),
        *(WorkUnits(samples=5, seed=1), WorkUnits(samples=5, shuffle=False), WorkUnits(samples=5, unit=2)),
    ]
    assert len({str(work) for work in said}) == len(said)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "expected one of samples=, files= and units=, got none"),
        ({"samples": 3, "units": 2}, "got samples and units"),
        ({"samples": -1}, "expected samples = a whole number from 0, got -1"),
        ({"samples": 3, "batch_size": 0}, "expected batch_size = a whole number from 1, got 0"),
        ({"samples": 3.5}, "got 3.5"),
        ({"samples": 3, "shuffle": "batch"}, 'expected shuffle = True, False or "units"'),
    ],
)
def test_numbers_that_make_no_sense(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WorkUnits(**given)  # type: ignore[arg-type]
