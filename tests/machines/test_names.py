"""A server is found by its name, also once that leads to another machine, as behind each restart under Kubernetes."""

import json
import signal
from pathlib import Path

import pytest

from pslab.check.checker import check_run
from pslab.runs.folder import Run
from pswire.security.names import Role
from tests.cluster.cluster import Process, entries_of, wait_until
from tests.machines.machines import Machines
from tests.machines.network import OWN_FILES
from tests.machines.test_machines import WORKER
from tests.promises import promise
from tests.repetitions import usually
from tests.security.identities import Identities

pytestmark = [pytest.mark.nightly, pytest.mark.cluster, pytest.mark.timeout(600)]

NAMES = ("ps0", "ps1")
HOSTS = ",".join(f"{name}:7070" for name in NAMES)
# The machine that a server comes back on, and that of the workers.
SPARE, WORKERS = 2, 3
BATCHES, GATE = 24, 12
WAYS = {
    "checkpoints": ("--resume", "auto", "--checkpoint-every", "4 versions"),
    "copies": ("--replicas", "2"),
}


class Named:
    """A job whose servers are known by names."""

    def __init__(self, machines: Machines, folder: Path, way: str, identities: Identities | None) -> None:
        self.machines, self.folder, self.out = machines, folder, folder / "run"
        self.options, self.identities = WAYS[way], identities
        self.secret = {"PS_JOB_SECRET": "known to the servers"}
        self.lead([0, 1])
        self.servers = [self.server(number, number) for number in range(2)]
        more = {"PS_REPLICAS": "2"} if way == "copies" else {}
        work = ("--ps-hosts", HOSTS, "--batches", str(BATCHES), "--gate", str(GATE), str(folder / "gate"))
        self.workers = [
            machines[WORKERS].python(
                f"w{rank}",
                folder / f"w{rank}.log",
                *(*WORKER, *work, "--task-index", str(rank)),
                **(self.identity(Role.WORKER, f"w{rank}") | more),
            )
            for rank in range(2)
        ]

    def lead(self, places: list[int]) -> None:
        """Have the names lead to these machines, on all machines."""
        lines = [f"{self.machines[place].address} {name}" for name, place in zip(NAMES, places, strict=True)]
        for machine in self.machines.machines:
            # In place: the file is mounted there.
            (OWN_FILES / machine.namespace / "hosts").write_text(
                "\n".join(["127.0.0.1 localhost", *lines, ""])
            )

    def identity(self, role: Role, name: str) -> dict[str, str]:
        if self.identities is None:
            return {}
        return self.identities.environment(role, name, hosts=NAMES if role is Role.SERVER else ())

    def server(self, number: int, place: int) -> Process:
        plain = () if self.identities else ("--insecure",)
        return self.machines[place].python(
            f"server-{number}-on-{place}",
            self.folder / f"server-{number}-on-{place}.log",
            *("-m", "psserver", "--json", "--out", str(self.out), "--bind", self.machines[place].address),
            *("--ps-hosts", HOSTS, "--task-index", str(number), "--workers", "2", "--policy", "sync"),
            *("--worker-timeout", "20", *self.options, *plain),
            **(self.identity(Role.SERVER, f"server-{number}") | self.secret),
        )

    def moves(self, number: int) -> None:
        """Kill a server, and start it on another machine, to which its name leads from then on."""
        self.servers[number].send(signal.SIGKILL)
        self.servers[number].wait_exit()
        self.lead([SPARE if each == number else each for each in range(2)])
        self.servers[number] = self.server(number, SPARE)
        self.servers[number].wait_event("ready")

    def version(self) -> int:
        path = self.out / "decisions.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return sum('"kind":"apply"' in line for line in lines)


CASES: list[object] = [("checkpoints", True, 0), ("copies", True, 0), ("checkpoints", False, 1)]


@promise("A server that comes back at another address is found by its name.")
@pytest.mark.parametrize(("way", "secured", "number"), usually(CASES[:2], CASES))
def test_a_server_whose_name_leads_to_another_machine_is_found(
    four: Machines, tmp_path: Path, way: str, secured: bool, number: int
) -> None:
    job = Named(four, tmp_path, way, Identities(tmp_path) if secured else None)
    wait_until(lambda: job.version() >= GATE, "the workers at the gate")
    job.moves(number)
    (tmp_path / "gate").touch()
    assert [worker.wait_exit() for worker in job.workers] == [0, 0], [each.errors for each in job.workers]
    assert [server.wait_exit() for server in job.servers] == [0, 0], [each.errors for each in job.servers]
    run = Run(job.out)
    assert check_run(run).ok
    commits = [(entry["worker"], entry["batch"]) for entry in entries_of(run, "commit") if entry["samples"]]
    assert sorted(commits) == [(f"w{rank}", batch) for rank in range(2) for batch in range(BATCHES)]
    assert json.loads((job.out / "summary.json").read_text())["success"]
