"""A local run whose processes are killed, stopped and cut off, and what must hold of it nevertheless."""

import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from unittest import mock

from pslab.check.checker import check_run
from pslab.display.progress import choose
from pslab.experiment import Experiment
from pslab.launch.engines.launcher import Task
from pslab.launch.engines.local import LocalLauncher
from pslab.launch.exits import RunResult
from pslab.launch.experiments import load
from pslab.launch.restarts import Restarts
from pslab.launch.run import RealRun
from pslab.launch.security import observable, security_of
from pslab.launch.status_client import StatusClient, StatusError
from pslab.launch.tasks import Daemons
from pslab.runs.folder import CHECKPOINTS, Run
from pslab.runs.making import make_folder
from psserver.checkpoint import Store
from pswire.addresses import parse_address
from tests.chaos.campaign import Campaign, Disturbance, Kind, Outcome, Progress, disturbances
from tests.cluster.cluster import entries_of
from tests.relay import Relay

LOOK_EVERY = 0.02
# Seconds that an answer may take.
ANSWER = 0.5
# Of each process.
RESTARTS = 1000


class DisturbedRun(RealRun):
    """A `RealRun` on this machine that is disturbed while it goes on.

    A thread polls the coordinator and disturbs processes; the run itself only restarts those that have died. Workers
    reach servers through relays, whose connections can be cut. `recovered` is called once the campaign is over.
    """

    def __init__(
        self, experiment: Experiment, folder: Path, campaign: Campaign, recovered: Callable[[], None]
    ) -> None:
        self._security = security_of(experiment, remote=False)
        display, daemons = choose(as_json=False, quiet=True), Daemons(restarts=RESTARTS)
        super().__init__(experiment, folder, display, LocalLauncher(), daemons, security=self._security)
        self._campaign, self._recovered = campaign, recovered
        self._relays: dict[tuple[str, str], Relay] = {}
        self._over = threading.Event()
        self._resumes: list[threading.Timer] = []

    def run(self) -> RunResult:
        """Run as `RealRun.run` does, with disturbances."""
        disturber = threading.Thread(target=self._disturb, daemon=True)
        at_once = mock.patch.object(Restarts, "pause", return_value=0.0)
        disturber.start()
        try:
            with self._display, observable(self._folder, self._security), at_once:
                return super().run()
        finally:
            self._over.set()
            disturber.join()
            for timer in self._resumes:
                timer.cancel()
            for relay in self._relays.values():
                relay.close()

    def _start_task(self, task: Task) -> None:
        if task.name in self._workers:
            hosts, relayed = self._tasks.hosts(self._addresses), self._relayed_hosts(task.name)
            command = [relayed if word == hosts else word for word in task.command]
            variables = {key: relayed if value == hosts else value for key, value in task.environment.items()}
            task = replace(task, command=command, environment=variables)
        super()._start_task(task)

    def _relayed_hosts(self, worker: str) -> str:
        """The addresses of this worker's relays, which stay valid when a server restarts."""
        for server in self._servers:
            if (worker, server) not in self._relays:
                self._relays[worker, server] = Relay(_place(self._addresses[server]))
        return ",".join(self._relays[worker, server].address for server in self._servers)

    # In the disturbing thread

    def _disturb(self) -> None:
        while not self._ready:
            if self._over.wait(LOOK_EVERY):
                return
        client = StatusClient(self._addresses[self._servers[0]], ANSWER, self._credentials)
        try:
            while not self._over.wait(LOOK_EVERY):
                due = self._campaign.see(time.monotonic(), _ask(client))
                if due is not None and self._do(due):
                    self._campaign.done(time.monotonic(), due)
                if self._campaign.over:
                    self._recovered()
        finally:
            client.close()

    @property
    def _ready(self) -> bool:
        relays = len(self._workers) * len(self._servers)
        return self._servers[0] in self._addresses and len(self._relays) == relays

    def _do(self, due: Disturbance) -> bool:
        """Carry out a disturbance; return False if the process is not running."""
        process = self._processes.get(due.name)
        if process is None or not process.running:
            return False
        print(f"{due.kind} {due.name} ({due.role})", flush=True)
        if due.kind == "cut":
            for ends, relay in self._relays.items():
                if due.name in ends:
                    relay.cut()
            return True
        if due.kind == "kill":
            process.send(signal.SIGKILL)
            return True
        process.send(signal.SIGSTOP)
        seconds = due.pause * self._experiment.cluster.worker_timeout
        timer = threading.Timer(seconds, process.send, (signal.SIGCONT,))
        self._resumes.append(timer)
        timer.start()
        return True


def _place(address: str) -> tuple[str, int]:
    found = parse_address(address)
    return found.host, found.port


def _ask(client: StatusClient) -> Progress | None:
    try:
        reply = client.ask()
    except StatusError:
        return None
    return Progress(reply.job, reply.version, reply.phase)


def disturbed(
    folder: Path,
    file: str,
    seed: int,
    strikes: int,
    *overrides: str,
    kinds: Sequence[Kind],
    recovered: Callable[[], None] = lambda: None,
) -> tuple[Run, list[Outcome]]:
    """A run of an experiment of this folder that is disturbed so often. Nothing is lost.

    `recovered` is called once it has recovered from the last disturbance.
    """
    experiment = load(Path(__file__).with_name(file), overrides)
    plan = disturbances(seed, experiment.cluster.servers, experiment.cluster.workers, kinds)
    campaign = Campaign(list(islice(plan, strikes)))
    result = DisturbedRun(experiment, make_folder(folder), campaign, recovered).run()
    run = Run(folder)
    assert result.ok, f"exit code {int(result.verdict.code)}: {result.verdict.reason}"
    assert [str(violation) for violation in check_run(run).violations] == []
    store = Store(folder / CHECKPOINTS)
    for name in store.names():
        if (store.root / name / "manifest.json").is_file():
            store.verify(name)
    return run, campaign.outcomes


def batches_of(run: Run, worker: str) -> list[int]:
    """The batches of the worker that were committed: each once, and none is missing."""
    batches = [entry["batch"] for entry in entries_of(run, "commit") if entry["worker"] == worker]
    assert sorted(batches) == list(range(len(batches))) and batches
    return batches
