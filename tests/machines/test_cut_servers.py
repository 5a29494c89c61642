"""Servers with replicas lose their cables, one after the other: the others go on, and nothing is lost."""

import json
import time
from pathlib import Path

import pytest

from pslab.check.checker import check_run
from pslab.runs.folder import Run
from tests.cluster.cluster import PATIENCE, Process, entries_of, wait_until
from tests.cluster.replicated import undisturbed
from tests.machines.machines import Machines
from tests.machines.test_machines import WORKER
from tests.repetitions import repetitions

pytestmark = [pytest.mark.nightly, pytest.mark.cluster, pytest.mark.timeout(3600)]

# Who is cut off, in turn, as the status calls it.
ROLES = {"leads": "that leads", "in sync": "with the other copy", "votes": "that votes"}
TURNS = tuple(ROLES)
# Steps of each worker between two cuts, and elements of the model.
STEPS, ELEMENTS = 6, 1000


class Job:
    """Three servers on a machine each, and two workers on a fourth."""

    def __init__(self, machines: Machines, folder: Path, cuts: int) -> None:
        self.machines, self.folder, self.out = machines, folder, folder / "run"
        self.batches = STEPS * (cuts + 2)
        self.hosts = [f"{machines[place].address}:0" for place in range(3)]
        self.servers: dict[int, Process] = {}
        # Server 0 comes last: it must know the addresses of the others.
        for place in (2, 1, 0):
            self.start(place)
            self.hosts[place] = str(self.servers[place].wait_event("ready")["address"])
        given = [
            "--batches",
            str(self.batches),
            "--elements",
            str(ELEMENTS),
            "--server-timeout",
            str(PATIENCE),
        ]
        for cut in range(1, cuts + 2):
            given += ["--gate", str(STEPS * cut), str(self.gate(cut))]
        where = ("--ps-hosts", ",".join(self.hosts))
        self.workers = [
            machines[3].python(
                f"w{rank}",
                folder / f"w{rank}.log",
                *(*WORKER, *where, "--task-index", str(rank), *given),
                PS_REPLICAS="2",
            )
            for rank in range(2)
        ]

    def start(self, place: int) -> None:
        here = self.machines[place].address
        self.servers[place] = self.machines[place].python(
            f"server-{place}",
            self.folder / f"server-{place}.log",
            *("-m", "psserver", "--json", "--out", str(self.out), "--bind", here, "--insecure"),
            *("--ps-hosts", ",".join(self.hosts), "--task-index", str(place), "--replicas", "2"),
            *("--workers", "2", "--policy", "sync", "--optimizer", "adam", "--worker-timeout", str(PATIENCE)),
        )

    def gate(self, cut: int) -> Path:
        return self.folder / str(cut)

    def version(self) -> int:
        """Return the newest version of the log, whoever writes it."""
        try:
            lines = (self.out / "decisions.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return 0
        return sum('"kind":"apply"' in line for line in lines)

    def states(self) -> list[str]:
        """Return what the server that leads says of all."""
        command = ("-m", "pslab", "status", ",".join(self.hosts), "--json")
        asked = self.machines[3].python("status", self.folder / "status.log", *command)
        code = asked.wait_exit()
        states = [str(each["state"]) for each in json.loads(asked.lines[-1])["servers"]] if code == 0 else []
        asked.close()
        return states

    def wait_whole(self) -> list[str]:
        states: list[str] = []

        def whole() -> bool:
            states[:] = self.states()
            return sorted(states) == sorted(ROLES)

        wait_until(whole, "all servers there")
        return states

    def cut(self, number: int) -> float:
        """Cut off the server whose turn it is, until another version is there and its own again; return the seconds
        to that version."""
        wait_until(lambda: self.version() >= STEPS * number, "the workers at the gate")
        place = self.wait_whole().index(TURNS[number % len(TURNS)])
        led = TURNS[number % len(TURNS)] == "leads"
        before, began = self.version(), time.monotonic()
        self.machines.cut(place)
        self.gate(number).touch()
        wait_until(lambda: self.version() > before, "another version")
        seconds = time.monotonic() - began
        if led:
            # It can have decided nothing alone, and others lead before it hears of them.
            leader = self.out / "address"
            wait_until(lambda: not leader.read_text().startswith(self.hosts[place]), "another one leads")
        self.machines.mend(place)
        if led:
            self.start_replaced(place)
        return seconds

    def start_replaced(self, place: int) -> None:
        """Start a server again once it has noticed that another one leads."""
        assert self.servers[place].wait_exit() == 5, self.servers[place].errors
        self.servers[place].close()
        self.start(place)

    def assert_nothing_lost(self, gate: int) -> None:
        """Open the last gate, and compare the run's end with that of one without a loss."""
        # A server that comes back while the job ends would not hear of it.
        self.wait_whole()
        self.gate(gate).touch()
        assert [worker.wait_exit() for worker in self.workers] == [0, 0], [
            each.errors for each in self.workers
        ]
        assert [server.wait_exit() for server in self.servers.values()] == [0, 0, 0]
        run = Run(self.out)
        verdict = check_run(run)
        assert verdict.ok, [str(violation) for violation in verdict.violations]
        commits = [
            (entry["worker"], entry["batch"]) for entry in entries_of(run, "commit") if entry["samples"]
        ]
        assert sorted(commits) == [(f"w{rank}", batch) for rank in range(2) for batch in range(self.batches)]
        assert [worker.wait_event("finished")["computed"] for worker in self.workers] == [self.batches] * 2
        assert run.summary.weights_sha256 == undisturbed(self.folder / "alone", ELEMENTS, self.batches)


def test_servers_are_cut_off_one_after_the_other(
    four: Machines, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cuts = repetitions(3, soak=100, fast=1)
    job = Job(four, tmp_path, cuts)
    seconds = [job.cut(number) for number in range(1, cuts + 1)]
    job.assert_nothing_lost(cuts + 1)
    with capsys.disabled():
        for turn, role in enumerate(ROLES.values()):
            found = sorted(each for number, each in enumerate(seconds, 1) if number % len(TURNS) == turn)
            if found:
                middle, longest = found[len(found) // 2], found[-1]
                print(
                    f"\nthe server {role} cut off: {len(found)} times, {middle:.2f} s median, {longest:.2f} longest"
                )


def test_a_server_that_leads_and_reaches_no_worker_leaves_the_lead(four: Machines, tmp_path: Path) -> None:
    """The other servers hear it all the time, and the workers reach those."""
    job = Job(four, tmp_path, 1)
    wait_until(lambda: job.version() >= STEPS, "the workers at the gate")
    place = job.wait_whole().index("leads")
    four.hide(place, 3)
    job.gate(1).touch()
    leader = job.out / "address"
    wait_until(lambda: not leader.read_text().startswith(job.hosts[place]), "another one leads")
    wait_until(lambda: job.version() >= 2 * STEPS, "the workers at the next gate")
    four.show(place, 3)
    job.start_replaced(place)
    assert "no worker has reached this server" in job.servers[place].errors
    job.assert_nothing_lost(2)
