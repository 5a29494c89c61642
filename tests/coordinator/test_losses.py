"""Lose any worker at any point of a fixed schedule: the others go on, and the job ends in success."""

from collections.abc import Iterator

import pytest

from pslab.verify.guarded import TIMEOUT
from pslab.verify.schedule import Schedule
from psserver.decisions.entries import Commit
from tests.coordinator.settings import ALL, Setting
from tests.repetitions import repetitions

BATCHES = (3, 2, 3, 1)
# More acts than the undisturbed job has.
POINTS = 40
# Every point in a soak. No job here has three workers and four or more at once: each one's turn comes up.
EACH = repetitions(5, soak=1)
SEVERAL = [setting for setting in ALL if setting.workers > 1]


def undisturbed(setting: Setting, points: int) -> Schedule:
    """So many moves in turn: each worker does what comes next for it."""
    schedule = Schedule(setting.case, 0)
    schedule.left = dict(zip(schedule.left, BATCHES, strict=False))
    for point in range(points):
        if not schedule.stopped:
            schedule.play(schedule.move(f"w{point % setting.workers}"))
    return schedule


def losses(setting: Setting) -> Iterator[tuple[Schedule, str, int]]:
    """A schedule at each point at which its job still goes on, a worker that something happens to there, the point."""
    for point in range(setting.workers, POINTS, EACH):
        for victim in ("w0", "w1"):
            schedule = undisturbed(setting, point)
            if not schedule.stopped:
                yield schedule, victim, point


def batches_of(schedule: Schedule, worker: str) -> int:
    return sum(commit.worker == worker for commit in schedule.job.entries(Commit))


@pytest.mark.parametrize("setting", SEVERAL, ids=str)
def test_killed_for_good(setting: Setting) -> None:
    """The others are held up for the grace period at most, a third of worker_timeout."""
    for schedule, victim, point in losses(setting):
        schedule.cut(victim)
        schedule.dead.add(victim)
        schedule.lost.add(victim)
        began = schedule.job.now
        while any(schedule.left[other] for other in schedule.left if other != victim):
            for other in schedule.left:
                schedule.settle(other)
            schedule.wait(0.25)
            assert schedule.job.now - began <= TIMEOUT, (point, victim, schedule.acts)
        schedule.finish()


@pytest.mark.parametrize("setting", SEVERAL, ids=str)
def test_killed_and_started_again(setting: Setting) -> None:
    """The newcomer goes on where the commits of the former process end: no batch is lost or done twice."""
    for schedule, victim, point in losses(setting):
        if point % 4 < 2:
            schedule.cut(victim)
        schedule.dead.add(victim)
        schedule.finish()
        assert batches_of(schedule, victim) == BATCHES[int(victim[1:])], (point, victim, schedule.acts)


@pytest.mark.parametrize("setting", SEVERAL, ids=str)
def test_a_line_that_breaks(setting: Setting) -> None:
    """The worker comes back in time: it is the same incarnation, and nothing is lost or counted twice."""
    for schedule, victim, point in losses(setting):
        schedule.cut(victim)
        schedule.wait(0.5)
        schedule.finish()
        tally = schedule.job.coordinator.state.roster.tally(victim)
        assert tally.incarnations == 1
        assert batches_of(schedule, victim) == BATCHES[int(victim[1:])], (point, victim, schedule.acts)
