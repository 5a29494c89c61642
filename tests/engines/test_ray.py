"""Engine ray against a real Ray cluster of three nodes on this machine: success, losses, ends, codes, places.

Needs the extra `ray`; where it is missing they are skipped.
"""

import os
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from pslab.check.checker import check_run
from pslab.runs.folder import Run
from pswire.exits import ExitCode
from tests.cluster.cluster import entries_of
from tests.engines.ray_nodes import RayNodes, serving
from tests.engines.sites import Running, running
from tests.engines.test_real import endless, experiment
from tests.patience import PATIENCE, at_most, within
from tests.repetitions import SOAK, usually

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_spec("ray") is None, reason="no Ray (scripts/install ray)"),
]
KEEPER = "pslab.launch.remote.keeper"


class Site:
    """A cluster of three nodes with two CPUs each: the servers fill one, the workers another. Behind a head that takes
    no process: `ps-lab` attaches to it, and would be lost with it."""

    def __init__(self, cluster: RayNodes) -> None:
        self.cluster = cluster
        self.environment = {**os.environ, **cluster.environment}

    def run(self, *words: str) -> list[str]:
        lab = [sys.executable, "-m", "pslab", "run", *words]
        return [*lab, "--engine", "ray", "--address", self.cluster.address]

    def processes(self) -> list[psutil.Process]:
        return psutil.Process(self.cluster.pid).children(recursive=True)

    def assert_nothing_left(self) -> None:
        """No keeper and nothing that one started."""
        deadline = time.monotonic() + at_most(10.0)
        while (left := keepers(self.processes())) and time.monotonic() < deadline:
            psutil.wait_procs(left, timeout=0.2)
        assert not left, [process.cmdline() for process in left if process.is_running()]


def keepers(processes: list[psutil.Process]) -> list[psutil.Process]:
    found = []
    for process in processes:
        try:
            if KEEPER in process.cmdline():
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


@pytest.fixture(autouse=True)
def no_process_left_behind() -> None:
    """In place of the one of all tests: idle processes of Ray stay between tests, and end with the cluster, which
    `place` holds to that. What servers and workers leave behind is `Site.assert_nothing_left`'s."""


@pytest.fixture(scope="module")
def place() -> Iterator[Site]:
    with serving(0, 2, 2, 2) as cluster:
        made = Site(cluster)
        yield made
        left = made.processes()
    gone, alive = psutil.wait_procs(left, timeout=PATIENCE)
    assert not alive, alive


def joined(run: Running) -> list[int]:
    """Both workers; their processes."""
    pids = [int(run.until(f"worker-{n}", "where")["pid"]) for n in range(2)]
    for n in range(2):
        run.until(f"worker-{n}", "joined")
    return pids


def test_what_is_killed_comes_back_and_the_run_succeeds(place: Site, tmp_path: Path) -> None:
    """In a soak the worker, its keeper, and the actor that holds the keeper; else the actor, which takes all along."""
    killed = range(3) if SOAK else (2,)
    command = place.run(endless(tmp_path), "--out", str(tmp_path / "run"))
    with running(command, place.environment) as run:
        run.until("worker-0", "where")
        for generation in killed:
            pid = int(run.until("worker-1", "where")["pid"])
            run.until("worker-1", "joined")
            worker = psutil.Process(pid)
            chain = [worker, *worker.parents()]
            chain[generation].kill()
            psutil.wait_procs([worker], timeout=at_most(1.0))
            assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE
        run.until("worker-1", "joined")
        (tmp_path / "end").touch()
        end = run.end()
    assert (run.process.returncode, end["code"]) == (0, 0), end
    assert len(end["warnings"]) == len(killed) and all("started again" in each for each in end["warnings"])
    log = Run(tmp_path / "run")
    assert check_run(log).ok
    joins = [entry["incarnation"] for entry in entries_of(log, "join") if entry["worker"] == "w1"]
    assert joins == list(range(1 + len(killed)))
    place.assert_nothing_left()


ROOM = [
    ("cluster.place.workers.gpus=1", "1 GPU wanted, 0 GPU there, 0 GPU free"),
    ("cluster.place.workers.cpus=3", "no node has room for worker-0, which wants 3 CPU"),
    ("cluster.workers=9", "11 CPU wanted, 6 CPU there"),
    ("cluster.servers=5", "5 nodes wanted, one for each server"),
]


@pytest.mark.parametrize(("wish", "words"), usually(ROOM[:1], ROOM))
def test_what_finds_no_room_is_said_with_what_there_is(
    place: Site, tmp_path: Path, wish: str, words: str
) -> None:
    wishes = ["--set", wish, "--set", "cluster.place.place_timeout=1.0"]
    if "cluster.workers" not in wish:
        wishes += ["--set", "cluster.workers=1"]
    if "servers" in wish:
        wishes += ["--set", "cluster.place.servers={spread=true}"]
    command = place.run(experiment(tmp_path), "--out", str(tmp_path / "run"), *wishes)
    with within(30), running(command, place.environment) as run:
        end = run.end()
    assert run.process.returncode == ExitCode.UNREACHABLE
    assert words in end["reason"], end
    place.assert_nothing_left()
