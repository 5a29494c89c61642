"""Lose any worker at any point of a fixed schedule: the others go on, and the job ends in success."""

from collections.abc import Iterator

import pytest

from pslab.verify.clients import Client
from pslab.verify.guarded import TIMEOUT
from pslab.verify.schedule import ListedChoices, Schedule
from tests.coordinator.settings import ALL, Setting, second_opinion
from tests.repetitions import repetitions

BATCHES = (3, 2, 3, 1)
# More messages and notices than the undisturbed job has.
POINTS = 90
# Every point in a soak. No job here has five workers: each one's turn comes up.
EACH = repetitions(5, soak=1)
SEVERAL = [setting for setting in ALL if setting.workers > 1]


def undisturbed(setting: Setting, points: int) -> Schedule:
    """So many moves in turn: each worker delivers, hears or computes what comes next for it."""
    schedule = Schedule(setting.policy, setting.knobs, ListedChoices([]), workers=setting.workers)
    for client, batches in zip(schedule.clients.values(), BATCHES, strict=False):
        client.batches = batches
    for point in range(points):
        if schedule.coordinator.state.stopped is None:
            schedule.proceed(schedule.clients[schedule.names[point % setting.workers]])
    return schedule


def others_finish(schedule: Schedule, victim: str) -> float:
    """Let the others work as fast as they can; the seconds until they have nothing left to do."""
    began = schedule.now
    others = [client for client in schedule.clients.values() if client.worker != victim]
    while not all(client.finished and not client.up for client in others):
        for client in others:
            schedule.settle(client)
        assert schedule.now - began <= TIMEOUT, f"they still wait: {schedule.coordinator.state.tickets.live}"
        schedule.wait(0.25)
    return schedule.now - began


def losses(setting: Setting) -> Iterator[tuple[Schedule, Client, int]]:
    """A schedule at each point at which its job still goes on, a worker that something happens to there, the point."""
    for point in range(setting.workers, POINTS, EACH):
        for victim in ("w0", "w1"):
            schedule = undisturbed(setting, point)
            if schedule.coordinator.state.stopped is None:
                yield schedule, schedule.clients[victim], point


@pytest.mark.parametrize("setting", SEVERAL, ids=str)
def test_killed_for_good(setting: Setting) -> None:
    """The others are held up for the grace period at most, a third of worker_timeout."""
    for schedule, client, point in losses(setting):
        client.alive, client.gone = False, True
        schedule.cut(client)
        assert others_finish(schedule, client.worker) <= TIMEOUT
        schedule.run_to_completion()
        assert second_opinion(schedule) == [], (point, client.worker)


@pytest.mark.parametrize("setting", SEVERAL, ids=str)
def test_killed_and_started_again(setting: Setting) -> None:
    """The newcomer goes on where the commits of the former process end: no batch is lost or done twice."""
    for schedule, client, point in losses(setting):
        client.alive = False
        if point % 4 < 2:
            schedule.cut(client)
        schedule.run_to_completion()
        batches = [
            record.entry.to_json()["batch"]
            for record in schedule.log
            if record.entry.kind == "commit" and record.entry.to_json()["worker"] == client.worker
        ]
        if "backup" in setting.knobs:
            # A commit that crosses its cancel is void; its batch is gone with it.
            assert batches == sorted(set(batches)), (point, client.worker)
        else:
            assert batches == list(range(client.batches)), (point, client.worker)


@pytest.mark.parametrize("setting", SEVERAL, ids=str)
def test_a_line_that_breaks(setting: Setting) -> None:
    """The worker comes back in time: it is the same incarnation, and nothing is lost or counted twice."""
    for schedule, client, point in losses(setting):
        schedule.cut(client)
        schedule.wait(0.5)
        schedule.run_to_completion()
        assert client.incarnation == 0
        if "backup" not in setting.knobs:
            assert schedule.guard.log.committed[client.worker] == client.batches, (point, client.worker)
