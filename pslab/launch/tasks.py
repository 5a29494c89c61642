"""Command lines and environments of the servers and workers of an experiment, with placeholders. Pure."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pslab.experiment import Experiment
from pslab.launch.engines.launcher import Resources, Task, WantedPlace
from pslab.launch.remote.spawn import BIND, FOLDER, OWN, PARENT, file
from pslab.launch.security import Protection
from pslab.runs.folder import EXPERIMENT
from pswire.security.names import Role


@dataclass(frozen=True)
class Daemons:
    """The commands that start a server and a worker, and their time limits in seconds."""

    server: Sequence[str] = (sys.executable, "-m", "psserver")
    worker: Sequence[str] = (sys.executable, "-m", "psworker")
    # For [job] script; the parent's process id, the script and its arguments follow.
    script: Sequence[str] = (sys.executable, "-m", "psworker.script")
    # A server must report that it listens within this time.
    startup: float = 60.0
    # After the first failure, the other processes get this long to report its cause.
    linger: float = 2.0
    # From SIGTERM to SIGKILL.
    patience: float = 10.0
    # Additional time for servers that save their last version first.
    saving: float = 60.0
    # Servers end by themselves once no worker is left; they get worker_timeout and this.
    farewell: float = 30.0
    # Restarts of each process that dies; None for the engine's default (`pslab.launch.restarts`).
    restarts: int | None = None
    # Format of the processes' logs, one of pswire.logs.events.FORMATS.
    log_format: str = "text"


class Tasks:
    """The tasks of one run, by name: server-0, server-1, ..., worker-0, ...

    `remote`: as in the run's `Launcher`. `secret`: known to this run's servers only, so that no other process can give
    them orders. `security`: gives every process a certificate.
    """

    def __init__(
        self,
        experiment: Experiment,
        folder: Path,
        daemons: Daemons,
        remote: bool,
        secret: str,
        security: Protection,
    ) -> None:
        self._experiment, self._folder, self._daemons = experiment, folder, daemons
        self._remote, self._secret, self._security = remote, secret, security
        self._copies = experiment.cluster.replicas > 1
        self.servers = [f"server-{n}" for n in range(experiment.cluster.servers)]
        self.workers = [f"worker-{n}" for n in range(experiment.cluster.workers)]

    @property
    def wanted(self) -> list[WantedPlace]:
        """Places for all processes."""
        place = self._experiment.cluster.place
        servers, workers = place.servers, place.workers
        of_server = Resources(servers.cpus, servers.bytes, 0)
        of_worker = Resources(workers.cpus, 0, workers.gpus)
        return [
            # A lost node is to take one copy with it, not both.
            *(
                WantedPlace(
                    name, "server", of_server, servers.spread, self._copies, partner=f"server-{index ^ 1}"
                )
                for index, name in enumerate(self.servers)
            ),
            *(WantedPlace(name, "worker", of_worker) for name in self.workers),
        ]

    def hosts(self, addresses: Mapping[str, str]) -> str:
        """Return the value of --ps-hosts. A server without an address yet chooses its own."""
        return ",".join(addresses.get(name, OWN) for name in self.servers)

    def server(self, name: str, addresses: Mapping[str, str], resume_from: str | None) -> Task:
        """Return a server's task. `resume_from`: the checkpoint to resume from."""
        options = [*self._place(self.servers.index(name), addresses), "--out", FOLDER]
        if self._remote:
            options += ["--bind", BIND, *(["--spare"] if self._copies else [])]
        if resume_from is not None:
            options += ["--resume", resume_from]
        command = self._daemon(self._daemons.server, options)
        return self._task(name, command, {"PS_JOB_SECRET": self._secret}, resume_from)

    def worker(self, name: str, addresses: Mapping[str, str]) -> Task:
        """Return a worker's task. A script keeps its own command line and gets its options in the environment."""
        index, job = self.workers.index(name), self._experiment.job
        cluster = self._experiment.cluster
        copies = {"PS_REPLICAS": str(cluster.replicas)} if cluster.replicas > 1 else {}
        if not job.script:
            daemon = self._daemon(self._daemons.worker, self._place(index, addresses))
            return self._task(name, daemon, copies)
        variables = copies | {
            "PS_HOSTS": self.hosts(addresses),
            "PS_TASK_INDEX": str(index),
            "PS_WIRE_DTYPE": cluster.wire_dtype,
            "PS_TRANSPORT": cluster.transport,
        }
        return self._task(name, [*self._daemons.script, PARENT, job.script, *job.arguments], variables)

    def _place(self, index: int, addresses: Mapping[str, str]) -> list[str]:
        config = file(EXPERIMENT) if self._remote else f"{FOLDER}/{EXPERIMENT}"
        return ["--ps-hosts", self.hosts(addresses), "--task-index", str(index), "--config", config]

    def _daemon(self, command: Sequence[str], options: Sequence[str]) -> list[str]:
        full = [*command, *options, "--json", "--parent", PARENT]
        if self._daemons.log_format != "text":
            full += ["--log-format", self._daemons.log_format]
        return full

    def _task(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        resume_from: str | None = None,
    ) -> Task:
        server = name in self.servers
        # Checkpoints are written by all; with replicas another server goes on with the log.
        shares = bool(self._experiment.run.checkpoint_every) or resume_from is not None or self._copies
        resources = next(each.resources for each in self.wanted if each.name == name)
        task = Task(
            name,
            command,
            environment,
            resources,
            folder=self._folder,
            needs_folder=server and shares,
            spare=server and self._copies and self._remote,
        )
        if self._remote:
            experiment = {EXPERIMENT: self._experiment.to_toml().encode()}
            task = replace(task, files=lambda address: experiment)
        role, known = (Role.SERVER, name) if server else (Role.WORKER, f"w{self.workers.index(name)}")
        return self._security.protected(task, role, known)
