"""Real servers and real workers in the World, under everything that its seeds draw, judged when the job is over."""

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.promises import promise
from tests.repetitions import repetitions, seeds
from tests.world.job import Cluster, Worker, cluster
from tests.world.judge import judge
from tests.world.weather import Weather, stop

# Seconds of the World within which each job must be over.
LIMIT = 200.0
CHECKPOINTS = ["run.checkpoint_every=3 versions"]
TWO: dict[str, Any] = {"servers": 2, "workers": 3, "batches": 6, "overrides": CHECKPOINTS}
# Those whose weights are sums of gradients, so that the log says what they are.
POLICIES = (
    *("k-sync", "k-batch-sync", "rennala", "k-async", "k-batch-async", "softsync", "fedbuff", "bounded"),
    *("delay-adaptive", "ringmaster", "ssp", "dssp", "deadline-sync", "dbw", "fedbuff-timeout"),
)
ONE: dict[str, Any] = {"workers": 2, "batches": 2, "policy": "sync", "pace": 1.0}
# What may happen to a job, by name.
WEATHERS: dict[str, tuple[dict[str, Any], Weather]] = {
    "broken connections": (
        {"servers": 2, "workers": 3, "batches": 6, "policy": "sync"},
        Weather(seconds=2.0, cuts=0.03, slow=0.05),
    ),
    "stops": ({"workers": 3, "batches": 8}, Weather(seconds=2.0, cuts=0.01, stops=4)),
    "losses": (TWO, Weather(seconds=1.5, cuts=0.01, slow=0.02, worker_losses=1, server_losses=1)),
    "a barrier's losses": (
        {**TWO, "policy": "sync"},
        Weather(seconds=1.5, slow=0.02, stops=1, worker_losses=1, server_losses=1),
    ),
    "late tickets": (
        {"workers": 3, "batches": 6, "policy": "k-sync", "overrides": ["policy.aggregate=2"]},
        Weather(seconds=2.0, cuts=0.02, slow=0.3, late=0.5),
    ),
    "members that are given up": (
        {"workers": 3, "batches": 8, "worker_timeout": 2.0, "pace": 1.0},
        Weather(seconds=3.0, cuts=0.03, stops=4, longest_stop=2.5),
    ),
    "a copy takes over": (
        {"servers": 2, "workers": 2, "batches": 8, "replicas": 2},
        Weather(seconds=2.0, cuts=0.005, server_losses=1),
    ),
    "copies of two parts": (
        {"servers": 4, "workers": 2, "batches": 6, "replicas": 2, "policy": "sync"},
        Weather(seconds=1.5, cuts=0.003, server_losses=1),
    ),
    "torn checkpoints": ({**TWO, "log_flush": "system"}, Weather(seconds=1.5, slow=0.02, torn=2)),
    "a full disk": (TWO, Weather(seconds=1.5, full=0.1, server_losses=1)),
}


def play(seed: int, folder: Path, weather: Weather, **given: Any) -> Cluster:
    """Play a job to its end and judge it."""
    with cluster(seed, folder, **given) as job:
        weather.over(job)
        job.begin()
        job.run(LIMIT)
        judge(job)
    return job


@pytest.mark.parametrize("name", ["losses", "a copy takes over"])
def test_one_seed_gives_one_log(name: str, tmp_path: Path) -> None:
    """Byte for byte: all that happened, and the decision log."""
    given, weather = WEATHERS[name]
    logs = []
    for number in range(2):
        job = play(7, tmp_path / str(number), weather, **given)
        logs.append(("\n".join(job.world.log), (job.folder / "decisions.jsonl").read_bytes()))
    assert logs[0] == logs[1]
    assert play(8, tmp_path / "other", weather, **given).world.log != job.world.log


@promise("Whatever breaks, each batch counts once, and the job ends with the weights of its log.")
@promise("Nothing is undone while one copy of each part is in sync.")
@promise("A server may be lost at any step of a checkpoint.")
@pytest.mark.parametrize("name", WEATHERS)
def test_a_job_ends_right_in_any_weather(name: str, tmp_path: Path) -> None:
    given, weather = WEATHERS[name]
    lost = 0
    for seed in seeds(3, soak=100, fast=1):
        job = play(seed, tmp_path / str(seed), weather, **given)
        lost += sum(" loses " in line for line in job.world.log)
        restored = '"kind":"restore"' in (job.folder / "decisions.jsonl").read_text()
        assert not restored or job.replicas == 1, "a copy was there: nothing is undone"
    assert lost or not weather.torn, "no server has lost bytes that it had not synced"


@promise("A job whose servers are killed one after the other ends with the rows of its log.")
def test_both_copies_are_lost_one_after_the_other(tmp_path: Path) -> None:
    """The second one when the first one is back, and has its copy."""
    for seed in seeds(2, soak=50, fast=1):
        with cluster(seed, tmp_path / str(seed), servers=3, batches=12, pace=2.0, replicas=2) as job:
            job.begin()
            job.world.at(1.0, lambda: job.servers[0].lose())
            job.world.at(6.0, lambda: job.servers[1].lose())
            job.run(LIMIT)
            judge(job)
            assert [server.lives for server in job.servers] == [2, 2, 1]
            assert '"kind":"restore"' not in (job.folder / "decisions.jsonl").read_text()


@promise("Random losses of servers and workers lose no row.")
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_goes_on_behind_losses(policy: str, tmp_path: Path) -> None:
    given = {"servers": 1, "workers": 3, "batches": 6, "policy": policy, "overrides": CHECKPOINTS}
    for seed in seeds(1, soak=20):
        weather = Weather(seconds=1.5, cuts=0.01, slow=0.02, worker_losses=1, server_losses=1)
        play(seed, tmp_path / str(seed), weather, **given)


def cut_at(number: int, how: str, folder: Path, stands: float = 0.0, **given: Any) -> int:
    """Play a job in which the frame of one number is cut; return how many frames there were.

    `stands`: seconds for which the worker of that frame stands still from then on.
    """
    with cluster(1, folder, **given) as job:
        frames = count(1)

        def pass_by(name: str) -> str:
            if next(frames) != number:
                return ""
            if stands:
                process = job.workers[int(name[1])].process
                job.world.at(0.0, lambda: stop(job, process, stands))
            return how

        job.network.pass_by = pass_by
        job.begin()
        job.run(LIMIT)
        judge(job)
    return next(frames) - 1


@promise("Retries never apply a gradient twice and never lose one.")
@promise(
    "Wherever a connection breaks, before or after any message, nothing is lost and nothing counts twice."
)
@pytest.mark.parametrize(
    ("given", "every"), [(ONE, 1), ({**ONE, "servers": 2}, 7)], ids=["one server", "two servers"]
)
def test_every_frame_of_a_job_may_be_lost_or_the_last(
    given: dict[str, Any], every: int, tmp_path: Path
) -> None:
    """`every`: which frames are tried; in a soak, all."""
    frames = cut_at(0, "", tmp_path / "whole", **given)
    for number in range(1, frames + 1, repetitions(every, soak=1, fast=20)):
        for how in ("before", "after"):
            cut_at(number, how, tmp_path / f"{number}-{how}", **given)


def test_every_frame_may_be_the_last_before_its_worker_is_given_up(tmp_path: Path) -> None:
    """It comes back as another member, and goes on behind what counted. In the first half of a job: later nobody would
    wait for it."""
    given: dict[str, Any] = {"workers": 2, "batches": 4, "worker_timeout": 2.0, "pace": 1.0}
    frames = cut_at(0, "", tmp_path / "whole", **given)
    for number in range(2, frames // 2, repetitions(2, soak=1, fast=20)):
        cut_at(number, "after", tmp_path / str(number), 1.5, **given)


def test_a_name_stays_its_owners(tmp_path: Path) -> None:
    """However often another process asks for it while the owner computes."""
    with cluster(3, tmp_path, workers=2, batches=8, worker_timeout=2.0, pace=4.0) as job:
        job.begin()
        thief: list[Worker] = []
        job.world.at(0.5, lambda: thief.append(Worker(job, "w0", 0)))
        job.run(LIMIT)
        job.world.run(lambda: thief[0].process.over, LIMIT)
        judge(job)
    assert thief[0].stop is None and thief[0].error is not None


@promise("No pause of a server makes it give a worker up.")
def test_a_server_that_stands_still_gives_nobody_up(tmp_path: Path) -> None:
    """Its workers find their connections broken meanwhile, and one of them at the moment in which it stops."""
    for seed in seeds(4, soak=50):
        with cluster(seed, tmp_path / str(seed), workers=2, batches=8) as job:
            job.begin()

            def pause(job: Cluster = job) -> None:
                for connection in list(job.network.connections):
                    job.network.cut(connection)
                job.world.at(0.003, lambda: stop(job, job.servers[0].process, 40.0))

            job.world.at(job.world.dice.uniform(0.13, 0.2), pause)
            job.run(LIMIT)
            judge(job)
            log = (job.folder / "decisions.jsonl").read_text()
            assert '"kind":"lost"' not in log or log.count('"incarnation":1') == 0, log
