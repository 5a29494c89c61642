"""One experiment on four machines by hand, and on ssh, Slurm and Ray over machines: as on this machine alone."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pslab.check.checker import check_run
from pslab.runs.folder import Run
from tests.cluster.cluster import Process
from tests.engines.sites import ROOT, running
from tests.engines.test_own_files import certified
from tests.machines.clusters import PLACED, Spread, experiment
from tests.machines.machines import Machines
from tests.repetitions import SOAK

pytestmark = [pytest.mark.nightly, pytest.mark.cluster, pytest.mark.timeout(600)]

BATCHES = 30
# What differs from run to run, and between a run on one machine and one on several.
OWN = ("job", "wall_seconds", "security")


def summary(run: Run) -> dict[str, object]:
    """What two runs of one experiment have in common; both pass `ps-lab check`."""
    assert check_run(run).ok
    record: dict[str, object] = json.loads((run.path / "summary.json").read_text(encoding="utf-8"))
    assert record["weights_sha256"] and record["versions"] == BATCHES
    return {key: value for key, value in record.items() if key not in OWN}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Of the run on this machine."""
    folder = tmp_path_factory.mktemp("here")
    lab = [sys.executable, "-m", "pslab", "run", experiment(folder, "--batches", str(BATCHES))]
    done = subprocess.run(
        [*lab, "--out", str(folder / "run"), "--quiet"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return summary(Run(folder / "run"))


def named(machines: Machines) -> tuple[str, ...]:
    """Options of `ps-lab certs`: wherever a server is, it is reached by an address in its certificate."""
    everywhere = "/".join(machine.address for machine in machines.machines)
    return ("--servers", ",".join(f"s{index}/{everywhere}" for index in range(3)), "--workers", "4")


def servers_of(machines: Machines, folder: Path, file: str) -> list[Process]:
    """One on each of three machines, which take what they show from the experiment file; server 0 first."""
    addresses = [f"{machines[place].address}:0" for place in range(3)]
    servers = []
    for index in (1, 2, 0):
        told = ("--task-index", str(index), "--bind", machines[index].address, "--config", file, "--json")
        kept = ("--out", str(folder / "run")) if index == 0 else ("--no-out",)
        hosts = ("--ps-hosts", ",".join(addresses))
        server = machines[index].python(
            f"server-{index}", folder / f"server-{index}.log", "-m", "psserver", *hosts, *told, *kept
        )
        addresses[index] = str(server.wait_event("ready")["address"])
        servers.append(server)
    return [servers[-1], *servers[:-1]]


def test_four_machines_by_hand_under_tls(four: Machines, tmp_path: Path, here: dict[str, object]) -> None:
    """Shards on three of them, a worker on each."""
    files = certified(tmp_path / "certs", *named(four))
    servers = servers_of(four, tmp_path, experiment(tmp_path, security=files))
    hosts = ",".join(str(server.wait_event("ready")["address"]) for server in servers)
    workers = [
        machine.python(
            f"worker-{index}",
            tmp_path / f"worker-{index}.log",
            *("tests/engines/worker.py", "--batches", str(BATCHES)),
            PYTHONPATH=str(ROOT),
            PS_HOSTS=hosts,
            PS_TASK_INDEX=str(index),
            **{f"PS_TLS_{key.upper()}": path.replace("{name}", f"w{index}") for key, path in files.items()},
        )
        for index, machine in enumerate(four.machines)
    ]
    assert [worker.wait_exit() for worker in workers] == [0] * 4, [worker.errors for worker in workers]
    assert [server.wait_exit() for server in servers] == [0] * 3, [server.errors for server in servers]
    run = Run(tmp_path / "run")
    assert summary(run) == here
    assert json.loads((run.path / "summary.json").read_text())["security"] == "tls"


def test_an_engine_over_machines_ends_with_the_same_weights(
    place: Spread, tmp_path: Path, here: dict[str, object]
) -> None:
    words = [experiment(tmp_path, "--batches", str(BATCHES)), "--out", str(tmp_path / "run"), *PLACED]
    with running(place.run(*words), place.environment) as run:
        servers = {str(run.until(f"server-{n}", "ready")["address"]).rpartition(":")[0] for n in range(3)}
        workers = {run.until(f"worker-{n}", "where")["host"] for n in range(4)}
        end = run.end()
    assert (run.process.returncode, end["code"]) == (0, 0), end
    # Each shard on a machine of its own.
    assert len(servers) == 3 and servers <= {machine.address for machine in place.machines.machines}
    assert len(workers) > 1 and workers <= {machine.name for machine in place.machines.machines}
    assert summary(Run(tmp_path / "run")) == here
    place.assert_nothing_left()


def test_the_users_own_certificates_over_machines(
    place: Spread, tmp_path: Path, here: dict[str, object]
) -> None:
    if not SOAK and place.engine != "ray":
        pytest.skip("in a soak: servers above, and tests/engines/test_own_files.py, have such files")
    files = certified(tmp_path / "certs", *named(place.machines))
    file = experiment(tmp_path, "--batches", str(BATCHES), security=files)
    with running(place.run(file, "--out", str(tmp_path / "run"), *PLACED), place.environment) as run:
        end = run.end()
    assert (run.process.returncode, end["code"]) == (0, 0), end
    record = Run(tmp_path / "run")
    assert summary(record) == here
    assert json.loads((record.path / "summary.json").read_text())["security"] == "tls"
