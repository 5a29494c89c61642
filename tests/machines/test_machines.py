"""Servers and workers on several machines, which share a network and nothing else."""

import signal
from pathlib import Path

import pytest

from pslab.check.checker import check_run
from pslab.runs.folder import Run
from pswire.exits import ExitCode
from pswire.security.names import Role
from tests.cluster.cluster import Process, wait_until
from tests.machines.machines import Machine, Machines
from tests.security.identities import Identities

pytestmark = [pytest.mark.nightly, pytest.mark.cluster]

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


def ended(folder: Path, server: Process, *workers: Process, code: ExitCode = ExitCode.OK) -> Run:
    """Everybody has ended well, the server with `code`, and the log is one."""
    assert [worker.wait_exit() for worker in workers] == [0] * len(workers), [w.errors for w in workers]
    assert server.wait_exit() == code, server.errors
    run = Run(folder / "run")
    verdict = check_run(run)
    assert verdict.ok, [str(violation) for violation in verdict.violations]
    return run


def trained(machines: Machines, folder: Path, servers: Identities | None) -> Run:
    """A server on the first machine, a worker on each; synchronous. Under TLS with `servers`."""
    here = machines[0].address
    options = ("--bind", here, "--ps-hosts", f"{here}:0", "--workers", "2", "--policy", "sync")
    if servers is None:
        server, address = start_server(machines[0], folder, *options, "--insecure")
    else:
        identity = servers.environment(Role.SERVER, "server-0", hosts=(here,))
        server, address = start_server(machines[0], folder, *options, **identity)
    assert address.startswith(here)
    workers = [
        machines[place].python(
            f"worker-{place}",
            folder / f"{place}.log",
            *(*WORKER, "--ps-hosts", address, "--task-index", str(place), "--batches", "40"),
            **({} if servers is None else servers.environment(Role.WORKER, f"w{place}")),
        )
        for place in range(2)
    ]
    return ended(folder, server, *workers)


def test_three_terminals_on_two_machines(two: Machines, tmp_path: Path) -> None:
    """In plain text and under TLS, with equal weights."""
    hashes = set()
    for secured in (None, Identities(tmp_path)):
        folder = tmp_path / ("tls" if secured else "plain")
        folder.mkdir()
        run = trained(two, folder, secured)
        assert run.summary.contributions["w0"].applied == run.summary.contributions["w1"].applied == 40
        hashes.add(run.summary.weights_sha256)
    assert len(hashes) == 1


def test_a_machine_whose_cable_is_pulled_is_lost_and_the_other_goes_on(two: Machines, tmp_path: Path) -> None:
    bound = ("--bind", two[0].address, "--insecure", "--ps-hosts", f"{two[0].address}:0")
    job = ("--policy", "sync", "--workers", "2", "--worker-timeout", "6")
    server, address = start_server(two[0], tmp_path, *bound, *job)
    here = two[0].python(
        "w0",
        tmp_path / "0.log",
        *WORKER,
        "--task-index",
        "0",
        "--ps-hosts",
        address,
        "--until",
        str(tmp_path / "end"),
    )
    there = two[1].python(
        "w1",
        tmp_path / "1.log",
        *WORKER,
        "--task-index",
        "1",
        "--ps-hosts",
        address,
        "--batches",
        "100000",
        "--hold",
        "computing@5",
    )
    there.wait_event("held")
    two.cut(1)
    wait_until(lambda: "w1 leaves: connection lost" in server.errors, "w1 is lost")
    (tmp_path / "end").touch()
    # Its data has not ended, and whoever looks at the end is told.
    run = ended(tmp_path, server, here, code=ExitCode.MISSING)
    there.send(signal.SIGKILL)
    assert run.summary.versions > 5
    assert not run.summary.success and set(run.summary.missing["batches"]) == {"w1"}
    assert "w1" in run.summary.reason
