"""What the measurements of this folder share: servers that are killed and started again, and steps of one worker."""

import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.peers.child import Child
from pslab.launch.status_client import StatusClient, StatusError
from pswire.v1 import coordinator_pb2 as pb
from psworker.link import Link

# Steps that come before those that count.
WARM_UP = 3


def kill(child: Child) -> None:
    """As `kill -9` does."""
    os.kill(child.pid, signal.SIGKILL)
    child.close()


@dataclass
class Servers:
    """Servers of one job with Adam, in one run folder; leaving the block kills them. `options`: of all of them."""

    folder: Path
    count: int
    options: tuple[str, ...]
    hosts: list[str] = field(default_factory=list)
    running: list[Child] = field(default_factory=list)

    def __enter__(self) -> "Servers":
        self.folder.mkdir(parents=True, exist_ok=True)
        self.hosts = ["127.0.0.1:0"] * self.count
        # Server 0 comes last: it must know the addresses of the others.
        started = {index: self._started(index) for index in reversed(range(self.count))}
        self.running = [started[index] for index in range(self.count)]
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.running:
            child.close(patience=0.0)

    def _started(self, index: int) -> Child:
        place = ("--ps-hosts", ",".join(self.hosts), "--task-index", str(index), "--parent", str(os.getpid()))
        arguments = ["-m", "psserver", *place, "--json", "--optimizer", "adam", *self.options]
        arguments += ["--out", str(self.folder / "run")]
        child = Child(f"server-{index}", arguments, self.folder / f"server-{index}.log")
        while (said := child.receive()).get("event") != "ready":
            pass
        self.hosts[index] = str(said["address"])
        return child

    def kill(self, index: int) -> None:
        kill(self.running[index])

    def start_again(self, index: int) -> None:
        """Return once it is ready."""
        self.running[index] = self._started(index)

    def status(self) -> pb.StatusReply | None:
        """Return what the server that leads says; None while none answers."""
        client = StatusClient(",".join(self.hosts))
        try:
            return client.ask()
        except StatusError:
            return None
        finally:
            client.close()


@dataclass(frozen=True, slots=True)
class Step:
    """When it ended, and how long it took; in seconds. `version`: what it has made."""

    end: float
    seconds: float
    version: int = 0


def initial(megabytes: float) -> dict[str, np.ndarray]:
    """Return one variable of so many megabytes."""
    return {"w": np.random.default_rng(0).normal(size=round(megabytes * 1e6 / 4)).astype(np.float32)}


def gradient(session: Link) -> list[np.ndarray]:
    return [np.full(shard.elements, 1e-3, np.float32) for shard in session.plan.shards]


def take(session: Link, gradient: list[np.ndarray], compute: float, asks: bool = False) -> Step:
    """One step: read the weights, compute for so long, push. `asks`: the commit asks for the next ticket."""
    began = time.monotonic()
    grant = session.ready()
    assert grant is not None, session.stop
    with session.view_flat(grant) as weights:
        float(weights[0][0])
        # Stands for a model's own work, on a device of its own.
        time.sleep(compute)
    session.contribute(grant, gradient, samples=1, loss=1.0, batch=grant.version, ready=asks)
    ended = time.monotonic()
    return Step(ended, ended - began, grant.version + 1)
