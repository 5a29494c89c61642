"""A job of the World: real servers and real workers, each in a process of its own."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import psworker
from psserver.options import Options
from psserver.service.life.servers import Servers
from psserver.service.replicas import link
from psserver.settings import resolve
from pswire.exits import ExitCode
from pswire.model.plan import VariableSpec
from pswire.model.tables import TableSpec
from psworker.data import shard_group
from psworker.errors import SessionError
from tests.world.channels import BlockingChannel, LoopChannel
from tests.world.clockwork import Process, World
from tests.world.disk import Fails, Unsynced
from tests.world.machine import WorldRuntime
from tests.world.network import Network
from tests.world.threads import baton

# The most workers and batches of a job. Each batch moves one element of the model, and one row of its table.
WORKERS, BATCHES = 4, 16
VALUES = [(VariableSpec("w", (WORKERS, BATCHES)), np.zeros((WORKERS, BATCHES), np.float32))]
TABLE = TableSpec("rows", 1, "zeros", ())
# Seconds until a lost process is started again.
AGAIN = (0.2, 1.0)


class Kept:
    """A process that a supervisor starts again if it is lost. `lives`: how often it was started."""

    def __init__(self, job: "Cluster", name: str, index: int) -> None:
        self.job, self.name, self.index, self.lives = job, name, index, 0
        self.process = self._begin()

    def _begin(self) -> Process:
        self.lives += 1
        process = Process(self.job.world, self.name)
        process.begin(partial(self.main, process))
        return process

    def main(self, process: Process) -> None:
        raise NotImplementedError

    def lose(self) -> None:
        """Lose the process with what it has not synced; another one takes its place soon."""
        self.job.world.say("lose", self.name)
        self.process.lose()
        self.job.world.at(self.job.world.dice.uniform(*AGAIN), self._again)

    def _again(self) -> None:
        self.process = self._begin()


class Server(Kept):
    """A process of `ps-server`. `code`: its exit code, once it has ended."""

    code: ExitCode | None = None

    def main(self, process: Process) -> None:
        job = self.job
        unsynced = Unsynced(process, lambda file: job.fails(file) or job.torn(self, file))

        def announce(event: str, fields: Any) -> None:
            job.world.say(self.name, event, fields.get("reason", ""))

        servers = Servers(
            resolve(job.options(self.index), None),
            lambda: resolve(job.options(self.index), None),
            announce,
            lambda: WorldRuntime(process, job.network, unsynced),
        )
        code = servers.run()
        if process.alive:
            self.code = code


class Worker(Kept):
    """A process with a loop of turns. Once it has ended: how the job did, the last weights, and why it failed."""

    stop: Any = None
    weights: Any = None
    error: SessionError | None = None

    def main(self, process: Process) -> None:
        job, self.error = self.job, None
        try:
            with psworker.connect(
                job.hosts,
                VALUES,
                name=self.name,
                task_index=self.index,
                transport="grpc",
                server_timeout=120.0,
                tables=[TABLE],
                replicas=job.replicas,
            ) as session:
                for turn in session.turns(list(range(job.batches)), rows=self._rows):
                    job.world.wait(None, job.world.dice.uniform(0.05, 1.0) * job.pace)
                    gradient = np.zeros((WORKERS, BATCHES), np.float32)
                    gradient[self.index, turn.batch] = 1.0
                    rows = {"rows": np.ones((1, 1), np.float32)}
                    turn.send({"w": gradient}, samples=1, loss=0.5, rows=rows)
                self.stop, self.weights = session.over, session.weights()["w"]
        except SessionError as error:
            self.error = error
            job.world.say(self.name, "fails", type(error).__name__, error)

    def _rows(self, batch: int) -> dict[str, Any]:
        """Return the row of a batch."""
        return {"rows": [BATCHES * self.index + batch]}


class Cluster:
    """A job: its servers, its workers, and the connections between them."""

    def __init__(
        self,
        seed: int,
        folder: Path,
        *,
        servers: int = 1,
        workers: int = 2,
        batches: int = 4,
        policy: str = "async",
        overrides: Sequence[str] = (),
        worker_timeout: float = 10.0,
        pace: float = 0.3,
        replicas: int = 1,
        log_flush: str = "disk",
    ) -> None:
        """`pace`: seconds that a batch takes at most. `replicas`: copies of each part of the model."""
        self.world = World(seed)
        self.network = Network(self.world)
        self.folder, self.batches, self.worker_timeout, self.pace = folder, batches, worker_timeout, pace
        self._log_flush = log_flush
        self.hosts = ",".join(f"127.0.0.1:{7000 + index}" for index in range(servers))
        self._counts, self.replicas = (servers, workers), replicas
        self._overrides = [
            *(f"cluster.replicas={replicas}",) * (replicas > 1),
            *(f"cluster.workers={workers}", f"policy.name={policy}", "optimizer.learning_rate=1.0"),
            *("cluster.transport=grpc", f"cluster.worker_timeout={worker_timeout}", *overrides),
        ]
        # Says of a step on the disk, by the file, whether it fails.
        self.fails: Fails = lambda file: False
        # Says of a step of a server's whether it loses the process.
        self.torn: Callable[[Server, str], bool] = lambda server, file: False
        self.servers: list[Server] = []
        self.workers: list[Worker] = []

    def options(self, index: int) -> Options:
        """Return the command line of a server."""
        given: dict[str, Any] = {"out": self.folder, "resume": "auto", "log_flush": self._log_flush}
        return Options(ps_hosts=self.hosts, task_index=index, overrides=self._overrides, **given)

    def begin(self) -> None:
        """Start all processes."""
        servers, workers = self._counts
        self.servers = [Server(self, f"s{index}", index) for index in range(servers)]
        self.workers = [Worker(self, f"w{index}", index) for index in range(workers)]

    def run(self, seconds: float) -> None:
        """Run the job to its end. Raises Stalled, and what a process has raised."""
        self.world.run(self._over, seconds)

    @property
    def stopped(self) -> bool:
        """Whether the log says that the job is over."""
        decisions = self.folder / "decisions.jsonl"
        return decisions.is_file() and b'"kind":"stop"' in decisions.read_bytes()

    def _over(self) -> bool:
        errors = [error for process in self.world.processes if process.alive for error in process.errors]
        if errors:
            raise errors[0]
        ended = all(worker.process.over and worker.process.alive for worker in self.workers)
        return ended and all(server.code is not None for server in self.servers)


@contextmanager
def cluster(seed: int, folder: Path, **given: Any) -> Iterator[Cluster]:
    """A job of the World, to be begun and run."""
    made = Cluster(seed, folder, **given)

    def channel(address: str, options: Any, credentials: Any) -> Any:
        return BlockingChannel(made.network, made.world.process, address)

    def between_servers(address: str, options: Any, credentials: Any) -> Any:
        return LoopChannel(made.network, made.world.process, address, asyncio.get_running_loop())

    dials = mock.patch.object(shard_group, "open_channel", channel)
    replicates = mock.patch.object(link, "open_aio_channel", between_servers)
    with baton(made.world), dials, replicates, made.world:
        yield made
