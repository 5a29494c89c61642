"""A runner covers every element once, whatever the sizes, and ends in order."""

import threading

import pytest

from psserver.fast import Backend


def covered(runner: Backend, size: int) -> list[tuple[int, int]]:
    """The ranges of one pass over `size` elements, sorted."""
    ranges: list[tuple[int, int]] = []

    def part(start: int, stop: int) -> bool:
        ranges.append((start, stop))
        return True

    assert runner.share(part, size)
    return sorted(ranges)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("size", [0, 1, 9, 10, 19, 20, 21, 105, 1000])
def test_ranges_are_disjoint_and_complete(threads: int, size: int) -> None:
    with Backend(threads, grain=10) as runner:
        ranges = covered(runner, size)
    assert ranges[0][0] == 0
    assert ranges[-1][1] == size
    assert all(left[1] == right[0] for left, right in zip(ranges, ranges[1:], strict=False))


def test_small_passes_stay_in_the_calling_thread() -> None:
    with Backend(4, grain=10) as runner:
        assert covered(runner, 39) == [(0, 39)]
        assert len(covered(runner, 40)) == 4


def test_ranges_are_worked_on_at_the_same_time() -> None:
    """Each of four ranges waits for the three others: one thread alone would never get past the barrier."""
    meeting = threading.Barrier(4, timeout=30)

    def part(start: int, stop: int) -> bool:
        meeting.wait()
        return True

    with Backend(4, grain=10) as runner:
        assert runner.share(part, 40)


def test_one_false_part_makes_the_pass_false() -> None:
    with Backend(2, grain=10) as runner:
        for bad in range(0, 100, 10):
            assert not runner.share(lambda start, stop, bad=bad: start != bad, 100)


def test_an_error_in_any_part_reaches_the_caller_after_the_others_ended() -> None:
    done: list[int] = []

    def part(start: int, stop: int) -> bool:
        if start == 50:
            raise ArithmeticError("part 50")
        done.append(start)
        return True

    with Backend(2, grain=10) as runner:
        with pytest.raises(ArithmeticError, match="part 50"):
            runner.share(part, 100)
        seen = len(done)
        assert covered(runner, 40) == [(0, 10), (10, 20), (20, 30), (30, 40)], (
            "the runner goes on after an error"
        )
    assert len(done) == seen, "nothing ran on after the error was raised"


def test_two_callers_at_once() -> None:
    results: dict[int, list[tuple[int, int]]] = {}
    with Backend(3, grain=10) as runner:
        callers = [
            threading.Thread(target=lambda size=size: results.update({size: covered(runner, size)}))
            for size in (500, 701)
        ]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    assert {size: (len(r), r[-1][1]) for size, r in results.items()} == {500: (50, 500), 701: (71, 701)}


def test_no_thread_is_left() -> None:
    before = set(threading.enumerate())
    with Backend(3, grain=10) as runner:
        covered(runner, 100)
    assert not set(threading.enumerate()) - before


def test_a_closed_crew_works_alone() -> None:
    """An update may still be under way when a server is told to end."""
    runner = Backend(3, grain=10)
    runner.close()
    runner.close()
    threads: set[int] = set()

    def part(start: int, stop: int) -> bool:
        threads.add(threading.get_ident())
        return True

    assert runner.share(part, 100)
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize(("threads", "grain"), [(0, 10), (-1, 10), (1, 0)])
def test_bad_counts_are_refused(threads: int, grain: int) -> None:
    with pytest.raises(ValueError, match="expected at least 1"):
        Backend(threads, grain)
