"""Engines over machines: what is killed comes back, and however a run ends nothing is left on any machine."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pslab.check.checker import check_run
from pslab.runs.folder import Run
from pswire.exits import ExitCode
from tests.cluster.cluster import entries_of
from tests.engines.codes import CODES
from tests.engines.sites import ROOT, Running, running
from tests.lab.test_local import assert_gone
from tests.machines.clusters import ENGINES, PLACED, Spread, endless
from tests.machines.conftest import site
from tests.repetitions import SOAK, usually

pytestmark = [pytest.mark.nightly, pytest.mark.cluster, pytest.mark.timeout(600)]

WORKERS = 4


@pytest.fixture
def longer(place: Spread) -> Spread:
    """Of Slurm and ssh, which tests/engines has on one machine, in a soak only."""
    if not SOAK and place.engine != "ray":
        pytest.skip("in a soak: tests/engines has the same on one machine")
    return place


def all_joined(run: Running) -> None:
    for index in range(WORKERS):
        run.until(f"worker-{index}", "joined")


def assert_went_well(run: Running, folder: Path) -> Run:
    """Once the data has ended."""
    (folder / "end").touch()
    end = run.end(120)
    assert (run.process.returncode, end["code"]) == (0, 0), end
    log = Run(folder / "run")
    assert check_run(log).ok
    return log


def test_what_is_killed_comes_back_and_the_run_succeeds(longer: Spread, tmp_path: Path) -> None:
    """The worker, and its keeper."""
    command = longer.run(endless(tmp_path), "--out", str(tmp_path / "run"))
    with running(command, longer.environment) as run:
        for generation in range(2):
            run.until("worker-1", "joined")
            _, worker = longer.worker(1)
            [worker, *worker.parents()][generation].kill()
            assert_gone([worker.pid])
        run.until("worker-1", "joined")
        log = assert_went_well(run, tmp_path)
    joins = [entry["incarnation"] for entry in entries_of(log, "join") if entry["worker"] == "w1"]
    assert joins == [0, 1, 2]
    longer.assert_nothing_left(30)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_on_any_machine_however_ps_lab_ends(
    longer: Spread, tmp_path: Path, number: signal.Signals
) -> None:
    command = longer.run(endless(tmp_path), "--out", str(tmp_path / "run"), *PLACED)
    with running(command, longer.environment) as run:
        all_joined(run)
        run.lab.send_signal(number)
        if number == signal.SIGINT:
            assert run.end(120)["reason"] == "stopped by SIGINT"
            assert run.process.returncode == ExitCode.INTERRUPTED
        else:
            run.process.communicate(timeout=60)
    longer.assert_nothing_left(60)


def test_exit_codes_arrive_as_they_are(longer: Spread, tmp_path: Path) -> None:
    hosts = longer.options[1].split(",") if longer.engine == "ssh" else []
    codes = [sys.executable, "-m", "tests.engines.codes", longer.engine, str(tmp_path), *hosts]
    address = {"RAY_ADDRESS": longer.options[1]} if longer.engine == "ray" else {}
    done = subprocess.run(
        [*longer.around, *codes],
        cwd=ROOT,
        env={**longer.environment, **address},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {str(code): code for code in CODES}


@pytest.fixture(params=usually(["ssh"], list(ENGINES)))
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Spread]:
    """For one test, which breaks it."""
    with site(request.param, tmp_path / request.param) as place:
        yield place


def test_a_killed_agent_of_a_servers_node_ends_the_run_and_nothing_is_left(
    fresh: Spread, tmp_path: Path
) -> None:
    """Of ssh the daemon and its sessions, of Slurm slurmd and its steps, of Ray the raylet."""
    command = fresh.run(endless(tmp_path), "--out", str(tmp_path / "run"), *PLACED)
    with running(command, fresh.environment) as run:
        all_joined(run)
        machine, server = fresh.server(1)
        assert machine is not fresh.machines[0]
        agents = fresh.agents(machine)
        assert agents
        for agent in agents:
            agent.kill()
        assert_gone([server.pid])
        end = run.end(120)
    assert (run.process.returncode, end["code"]) == (ExitCode.UNREACHABLE, ExitCode.UNREACHABLE), end
    fresh.assert_nothing_left(60)


@pytest.fixture(params=usually(["slurm"], ["slurm", "ray"]))
def another(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Spread]:
    """As `fresh`."""
    with site(request.param, tmp_path / request.param) as place:
        yield place


def test_a_run_outlives_a_killed_agent_of_a_node_with_workers_only(another: Spread, tmp_path: Path) -> None:
    """Of Slurm, whose steps do not need slurmd, nothing ends at all; of Ray all workers are started on another node."""
    # All of them may be on that node, and are lost at once.
    command = another.run(endless(tmp_path), "--out", str(tmp_path / "run"), "--restarts", str(2 * WORKERS))
    with running(command, another.environment) as run:
        hosts = {run.until(f"worker-{index}", "where")["host"] for index in range(WORKERS)}
        all_joined(run)
        machine, worker = another.worker(0)
        assert machine.name in hosts and machine is not another.server(0)[0]
        lost = [each for each in workers(another) if each in machine.running()]
        for agent in another.agents(machine):
            if agent.name() in ("slurmd", "raylet"):
                agent.kill()
        if another.engine == "ray":
            assert_gone([each.pid for each in lost])
            again = {run.until(f"worker-{index}", "where")["host"] for index in range(WORKERS)}
            assert machine.name not in again
            all_joined(run)
        assert_went_well(run, tmp_path)
    another.assert_nothing_left(60)


def workers(place: Spread) -> list[psutil.Process]:
    return [place.worker(index)[1] for index in range(WORKERS)]
