"""The times that a training loop reports: every second of it once, and none that the coordinator did not see pass."""

import ctypes
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psworker.data.timing import Stopwatch
from psworker.engine import Grant


@dataclass
class Loop:
    """A training loop on a clock that a test turns."""

    now: float = 100.0
    watch: Stopwatch = field(init=False)

    def __post_init__(self) -> None:
        self.watch = Stopwatch(lambda: self.now)

    def granted(self, ticket: int, *, way: float = 0.0) -> None:
        """Asks, and is granted what it asked for."""
        self.watch.ask()
        self.now += way
        self.watch.begin(Grant(ticket, 0, 0, received_at=self.now))

    def pulls(self, seconds: float) -> None:
        since = self.watch.now()
        self.now += seconds
        self.watch.waited(since)

    def step(self, ticket: int, *, pull: float, compute: float, push: float) -> tuple[float, float, float]:
        self.pulls(pull)
        self.now += compute
        self.watch.push(ticket)
        self.now += push
        times = self.watch.times(ticket)
        assert times is not None
        self.watch.end()
        return times


def test_pull_compute_and_what_came_before() -> None:
    loop = Loop()
    loop.granted(1, way=7)
    assert loop.step(1, pull=2, compute=3, push=5) == pytest.approx((2, 3, 0))
    loop.now += 11
    loop.granted(2, way=7)
    assert loop.step(2, pull=2, compute=3, push=5) == pytest.approx((2, 3, 11))


def test_a_computation_that_keeps_the_interpreter_counts_whole() -> None:
    """The clock of deadlines takes it for a pause of the process."""
    watch = Stopwatch()
    watch.ask()
    watch.begin(Grant(1, 0, 0, received_at=watch.now()))
    ctypes.PyDLL(None).usleep(600_000)
    watch.push(1)
    times = watch.times(1)
    assert times is not None and times.compute >= 0.6


def test_a_ticket_that_was_granted_ahead_begins_when_the_one_before_it_ends() -> None:
    """Its version was fetched meanwhile, and costs what is left to wait for."""
    loop = Loop()
    loop.granted(1)
    heard = loop.now + 1
    loop.step(1, pull=0, compute=4, push=2)
    loop.watch.ask()
    loop.watch.begin(Grant(2, 0, 0, received_at=heard))
    assert loop.step(2, pull=0.5, compute=4, push=2) == pytest.approx((0.5, 4, 0))


def test_the_version_that_came_along_with_the_answer_to_a_commit() -> None:
    """The answer began at 20, the version was there at 23."""
    loop = Loop(now=10)
    loop.granted(1)
    loop.pulls(0)
    loop.watch.push(1)
    loop.now = 23
    loop.watch.end(20)
    loop.watch.ask()
    loop.watch.begin(Grant(2, 0, 0, received_at=20))
    loop.watch.pulled(3)
    assert loop.step(2, pull=0, compute=4, push=1) == pytest.approx((3, 4, 0))


def test_nothing_is_told_of_a_ticket_that_was_not_pushed_or_is_not_in_hand() -> None:
    loop = Loop()
    loop.watch.push(1)
    assert loop.watch.times(1) is None
    loop.granted(2)
    assert loop.watch.times(2) is None
    loop.watch.push(1)
    assert loop.watch.times(1) is None and loop.watch.times(2) is None


SECONDS = st.integers(0, 20).map(float)


@given(st.lists(st.tuples(*[SECONDS] * 6, st.booleans()), max_size=12))
def test_every_second_is_counted_once(
    rounds: list[tuple[float, float, float, float, float, float, bool]],
) -> None:
    """Before, the grant's way, pull, compute and push add up to the clock, whatever comes in whatever order."""
    loop = Loop()
    for ticket, (reading, way, more, pull, compute, push, early) in enumerate(rounds, start=1):
        ended = loop.now
        loop.now += reading
        if early:
            # It was asked for with the last commit, and came while the loop was busy.
            heard = ended + min(way, reading)
            loop.watch.ask()
            loop.watch.begin(Grant(ticket, 0, 0, received_at=heard))
        else:
            loop.granted(ticket, way=way)
            heard = loop.now
        loop.now += more
        told = loop.step(ticket, pull=pull, compute=compute, push=push)
        worked = loop.now - push - heard
        assert told[0] == pull and told[0] + told[1] == pytest.approx(worked)
        assert told[2] == (0 if ticket == 1 else min(reading, heard - ended))
