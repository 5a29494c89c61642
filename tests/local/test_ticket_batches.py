"""A worker's data in parts of one ticket each: nothing lost, nothing twice, nothing read too early."""

from collections.abc import Iterator

import pytest

from psworker.local import by_ticket
from tests.local.single_worker import portions


def test_portions_of_one_are_batches() -> None:
    assert portions(3, 1) == [([0], 0, True), ([10], 1, True), ([20], 2, False)]


def test_the_last_one_may_be_shorter() -> None:
    assert portions(5, 2) == [([0, 10], 1, True), ([20, 30], 3, True), ([40], 4, False)]
    assert portions(4, 2)[-1] == ([20, 30], 3, False)
    assert portions(2, 500) == [([0, 10], 1, False)]


@pytest.mark.parametrize("steps", [1, 3])
def test_no_data_no_portions(steps: int) -> None:
    assert portions(0, steps) == []


def test_batches_are_read_one_ahead_and_no_further() -> None:
    read: list[int] = []

    def batches() -> Iterator[tuple[int, int]]:
        for number in range(10):
            read.append(number)
            yield number, number

    first = next(iter(by_ticket(batches(), 4)))
    assert read == [0] and not first.spent
    taken = iter(first)
    next(taken)
    assert read == [0, 1] and first.spent and (first.first, first.last) == (0, 0)


def test_a_portion_of_one_can_be_repeated_a_longer_one_cannot() -> None:
    single = next(iter(by_ticket([(7, "a"), (8, "b")], 1)))
    assert list(single) == list(single) == ["a"] and not single.spent
    pair = next(iter(by_ticket([(7, "a"), (8, "b"), (9, "c")], 2)))
    assert not pair.spent
    assert list(pair) == ["a", "b"] and list(pair) == [] and pair.spent


def test_what_a_ticket_left_is_passed_over() -> None:
    """So portions begin at multiples of their length, whatever happened: replay counts on it."""
    begun = []
    for portion in by_ticket(((number, number) for number in range(20, 31)), 4):
        begun.append(portion.first)
        next(iter(portion))
    assert begun == [20, 24, 28]
