"""Servers and workers on several machines, which share a network and nothing else."""

import json
import signal
from pathlib import Path

import pytest

from pslab.check.checker import check_run
from pslab.runs.folder import Run
from tests.cluster.cluster import Process
from tests.machines.machines import Machine, Machines

pytestmark = pytest.mark.cluster

WORKER = ("-m", "tests.cluster.numpy_worker")


def start_server(machine: Machine, folder: Path, *options: str, **environment: str) -> tuple[Process, str]:
    """A server that everybody may reach, and its address."""
    server = machine.python(
        "server",
        folder / "server.log",
        *("-m", "psserver", "--json", "--out", str(folder / "run"), *options),
        **environment,
    )
    return server, str(server.wait_event("ready")["address"])


def ended(folder: Path, server: Process, *workers: Process) -> Run:
    """Everybody has ended well, and the log is one."""
    assert [worker.wait_exit() for worker in workers] == [0] * len(workers), [w.errors for w in workers]
    assert server.wait_exit() == 0, server.errors
    run = Run(folder / "run")
    verdict = check_run(run)
    assert verdict.ok, [str(violation) for violation in verdict.violations]
    return run


def test_three_terminals_on_two_machines(two: Machines, tmp_path: Path) -> None:
    """A worker beside the server shares memory with it; one of another machine has a socket."""
    bound = ("--bind", two[0].address, "--insecure", "--ps-hosts", f"{two[0].address}:0", "--workers", "2")
    server, address = start_server(two[0], tmp_path, *bound)
    assert address.startswith(two[0].address)
    workers = [
        two[place].python(
            f"worker-{place}", tmp_path / f"{place}.log", *WORKER, "--ps-hosts", address, "--batches", "40"
        )
        for place in range(2)
    ]
    run = ended(tmp_path, server, *workers)
    assert run.summary.contributions["w0"].applied == run.summary.contributions["w1"].applied == 40


def test_tf_config_with_names_and_a_chief(two: Machines, tmp_path: Path) -> None:
    """Port 7070 is nobody else's there. A worker that comes before the server waits for it."""

    def config(kind: str) -> str:
        places = {"ps": ["host0:7070"], "chief": ["host0:1"], "worker": ["host1:1"]}
        return json.dumps({"cluster": places, "task": {"type": kind, "index": 0}})

    worker = two[1].python(
        "worker", tmp_path / "1.log", *WORKER, "--batches", "20", TF_CONFIG=config("worker")
    )
    server, address = start_server(
        two[0], tmp_path, "--bind", "host0", "--insecure", TF_CONFIG=config("ps")
    )
    assert address == "host0:7070"
    chief = two[0].python("chief", tmp_path / "0.log", *WORKER, "--batches", "20", TF_CONFIG=config("chief"))
    run = ended(tmp_path, server, worker, chief)
    assert run.summary.workers == 2


def test_a_machine_whose_cable_is_pulled_is_lost_and_the_other_goes_on(two: Machines, tmp_path: Path) -> None:
    bound = ("--bind", two[0].address, "--insecure", "--ps-hosts", f"{two[0].address}:0")
    server, address = start_server(
        two[0], tmp_path, *bound, "--policy", "sync", "--workers", "2", "--worker-timeout", "2"
    )
    here = two[0].python(
        "w0", tmp_path / "0.log", *WORKER, "--ps-hosts", address, "--until", str(tmp_path / "end")
    )
    there = two[1].python(
        "w1", tmp_path / "1.log", *WORKER, "--ps-hosts", address, "--batches", "100000", "--hold", "computing@5"
    )
    there.wait_event("held")
    two.cut(1)
    server.wait_line(lambda line: '"lost"' in line or "lost" in line, "that a worker is lost")
    (tmp_path / "end").touch()
    run = ended(tmp_path, server, here)
    there.send(signal.SIGKILL)
    assert run.summary.version > 5
