"""From a part to its batches: read on where the unit stands, or opened anew; a wrong length is said."""

import numpy as np
import pytest

from psworker.engine import UnitPart
from psworker.job import JobError
from psworker.work import Unit, UnitSource, WorkUnits


class Files:
    """Unit n has n batches, "n.0", "n.1", ...; which were opened."""

    def __init__(self) -> None:
        self.opened: list[int] = []

    def __call__(self, unit: Unit) -> list[str]:
        self.opened.append(unit.number)
        return [f"{unit.number}.{batch}" for batch in range(unit.number)]


def source(steps: int = 1, **work: int) -> tuple[UnitSource, Files]:
    files = Files()
    return UnitSource(WorkUnits(shuffle=False, **(work or {"units": 9})), files, steps, seed=0), files


def read(made: UnitSource, unit: int, part: int) -> list[str] | None:
    batches = made.of(UnitPart(0, unit, part))
    return None if batches is None else list(batches)


def test_parts_of_one_unit_are_read_without_opening_it_again() -> None:
    made, files = source()
    assert [read(made, 3, part) for part in range(4)] == [["3.0"], ["3.1"], ["3.2"], None]
    assert files.opened == [3]


def test_the_end_is_known_with_the_last_part() -> None:
    made, _ = source()
    found = []
    for part in range(3):
        read(made, 3, part)
        found.append(made.ends())
    assert found == [False, False, True]


def test_an_earlier_part_and_another_unit_are_opened_anew() -> None:
    made, files = source()
    assert read(made, 5, 3) == ["5.3"]
    assert read(made, 5, 1) == ["5.1"]
    assert read(made, 2, 0) == ["2.0"]
    assert files.opened == [5, 5, 2]


def test_a_part_that_was_not_read_is_passed_over() -> None:
    """Its ticket was cancelled before the worker came to it."""
    made, files = source(steps=2)
    assert read(made, 5, 0) == ["5.0", "5.1"]
    made.of(UnitPart(0, 5, 1))
    assert read(made, 5, 2) == ["5.4"]
    assert files.opened == [5]


def test_a_part_that_was_read_and_is_dealt_again() -> None:
    made, _ = source(steps=2)
    assert read(made, 5, 1) == read(made, 5, 1) == ["5.2", "5.3"]


def test_an_empty_unit_has_no_parts() -> None:
    made, _ = source()
    assert read(made, 0, 0) is None


def test_a_dataset_that_is_shorter_than_declared_is_named() -> None:
    made, _ = source(units=9, batches=4)
    read(made, 3, 2)
    with pytest.raises(JobError, match=r"unit 3 of epoch 0 gives 3 batches; 4 were declared"):
        made.ends()
    with pytest.raises(JobError, match="unit 2 of epoch 0 gives 2 batches; 4 were"):
        read(made, 2, 3)


def test_a_dataset_that_is_longer_than_declared_is_named() -> None:
    made, _ = source(units=9, batches=4)
    read(made, 5, 3)
    with pytest.raises(JobError, match="unit 5 of epoch 0 gives more batches than the 4 that were declared"):
        made.ends()


def test_the_last_unit_of_samples_may_be_shorter() -> None:
    work = WorkUnits(samples=25, unit=20, batch_size=10, shuffle=False)
    made = UnitSource(work, lambda unit: unit.batches(np.arange(25)), 1, seed=0)
    batches = made.of(UnitPart(0, 1, 0))
    assert batches is not None and [len(batch) for batch in batches] == [5]
    assert made.ends()
    assert made.of(UnitPart(0, 1, 1)) is None
