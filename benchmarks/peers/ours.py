"""This parameter server as a peer: its daemons, and workers of benchmarks/programs/ours.py."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.loads import Load
from benchmarks.peers import Burst, watched
from benchmarks.peers.child import HERE, PATIENCE, ROOT, Child, Place, together

TERMS = ("--policy", "async", "--optimizer", "sgd", "--learning-rate", "0.001", "--idle-timeout", "600")
# Both sides compute on the CPU: whose accelerator is faster is not the question.
CPU_ONLY = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}


class WorkerPool:
    """Worker processes, shared by our peers: only one of those works at a time, and loading TensorFlow
    and tracing a model once is enough. `root`: the checkout whose code they run; `places`: where each runs."""

    def __init__(self, logs: Path, root: Path = ROOT, places: Sequence[Place] = ()) -> None:
        self.root = root
        self._logs, self._places = logs, places
        self._workers: list[Child] = []

    def first(self, count: int) -> list[Child]:
        while (number := len(self._workers)) < count:
            name = f"worker-{number}"
            arguments, log = ["-m", "benchmarks.programs.ours"], self._logs / f"{name}.log"
            place = self._places[number] if self._places else HERE
            self._workers.append(Child(name, arguments, log, CPU_ONLY, self.root, place))
        return self._workers[:count]

    def close(self) -> None:
        for worker in self._workers:
            worker.close()


def start_servers(
    name: str,
    load: Load,
    extra: Sequence[str],
    logs: Path,
    root: Path = ROOT,
    out: Path | None = None,
    place: Place = HERE,
    patience: float = PATIENCE,
) -> tuple[list[Child], str]:
    """Running servers and their --ps-hosts; each listens on a port of the system's choice. `out`: their run folder;
    `patience`: seconds that each may take until it is ready."""
    servers: list[Child] = []
    hosts = [f"{place.address}:0"] * load.servers
    try:
        # Server 0 must know the others' addresses, so it comes last.
        for index in reversed(range(load.servers)):
            arguments = ["-m", "psserver", "--ps-hosts", ",".join(hosts), "--task-index", str(index)]
            arguments += [*TERMS, "--workers", str(load.workers), *extra]
            arguments += ["--json", "--parent", str(os.getpid())]
            arguments += ["--no-out"] if index or out is None else ["--out", str(out)]
            label = f"{name}-server-{index}"
            servers.append(Child(label, arguments, logs / f"{label}.log", root=root, place=place))
            while (said := servers[-1].receive(patience)).get("event") != "ready":
                pass
            hosts[index] = said["address"]
    except BaseException:
        for server in servers:
            server.close(patience=0.0)
        raise
    return servers, ",".join(hosts)


class Ours:
    """`connect`: arguments of psworker.connect; `server`: options of ps-server."""

    def __init__(
        self,
        name: str,
        label: str,
        pool: WorkerPool,
        logs: Path,
        connect: Mapping[str, Any],
        server: Sequence[str] = (),
        place: Place = HERE,
    ) -> None:
        """`place`: where its servers run."""
        self.name, self.label = name, label
        self._place = place
        self._pool, self._logs = pool, logs
        self._connect, self._options = dict(connect), tuple(server)
        self._servers: list[Child] = []
        self._workers: list[Child] = []

    def prepare(self, load: Load) -> None:
        self._servers, hosts = start_servers(
            self.name, load, self._options, self._logs, self._pool.root, place=self._place
        )
        self._workers = self._pool.first(load.workers)
        together(
            self._workers,
            "prepare",
            load=self.name,
            hosts=hosts,
            connect=self._connect,
            shapes=load.shapes,
        )

    def measure(self, steps: int) -> Burst:
        pids = [server.pid for server in self._servers]
        workers = [worker.pid for worker in self._workers]
        return watched(pids, lambda: together(self._workers, "measure", load=self.name, steps=steps), workers)

    def release(self) -> None:
        together(self._workers, "release", load=self.name)
        for server in self._servers:
            server.leave()
        self._servers = []

    def close(self) -> None:
        """After a failure: the servers' job is not over, and they know no other reason to end."""
        for server in self._servers:
            server.close(patience=0.0)
