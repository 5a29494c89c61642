"""`scripts/bench availability recovery`: seconds from a `kill -9` to the next version, by role.

Two servers, two workers, `sync`, a checkpoint every few versions; a killed process is started again at once, with the
same command, as a supervisor does. Steps take no time to speak of: what is measured is noticing, reading and joining.
"""

import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.availability.running import Servers, kill
from benchmarks.peers.child import Child
from pswire.command.options import CONTEXT, number_option
from pswire.generations import follows
from pswire.v1 import coordinator_pb2 as pb
from psworker import connect, train

ROLES = ("worker", "shard", "server 0")
PATIENCE, LOOK_EVERY = 120.0, 0.01


@dataclass
class Result:
    """Of one step."""

    flats: list[np.ndarray]
    loss: float = 0.0
    norm: float = 1.0
    samples: int = 1


class Trainer:
    """Batches without end, gradients without work."""

    narrow = False
    work = None

    def batches(self, index: int, count: int, seed: int, epochs: int, skip: int) -> Iterator[tuple[int, int]]:
        number = skip
        while True:
            yield number, number
            number += 1

    def step(self, flats: list[np.ndarray], batch: Any) -> Result:
        time.sleep(0.01)
        return Result([np.full_like(flat, 1e-6) for flat in flats])


def work(hosts: str, index: int, megabytes: float) -> None:
    start = {"w": np.zeros((1024, max(1, round(megabytes * 1e6 / 4096))), np.float32)}
    with connect(hosts, start, task_index=index, local_rules=True) as session:
        train(session, Trainer(), 1, lambda *_: None)


class Cluster:
    """Two servers, and two workers of this program."""

    def __init__(self, servers: Servers, megabytes: float) -> None:
        self.servers, self.megabytes = servers, megabytes
        self.workers = [self._worker(index) for index in range(2)]

    def _worker(self, index: int) -> Child:
        options = ["--worker", "--hosts", ",".join(self.servers.hosts), "--index", str(index)]
        program = ["-m", "benchmarks.availability.recovery", *options, "--megabytes", str(self.megabytes)]
        return Child(f"worker-{index}", program, self.servers.folder / f"worker-{index}.log")

    def kill_and_start(self, role: str) -> float:
        """Return when it was killed."""
        at = time.monotonic()
        if role == "worker":
            kill(self.workers[0])
            self.workers[0] = self._worker(0)
        else:
            index = int(role == "shard")
            self.servers.kill(index)
            self.servers.start_again(index)
        return at

    def statuses(self) -> Iterator[pb.StatusReply]:
        """What server 0 answers, for as long as it may take."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if (status := self.servers.status()) is not None:
                yield status
            time.sleep(LOOK_EVERY)
        raise click.ClickException(f"no new version within {PATIENCE:g} s")

    def reach(self, version: int) -> pb.StatusReply:
        return next(status for status in self.statuses() if status.version >= version)

    def close(self) -> None:
        for worker in self.workers:
            worker.close(patience=0.0)


def recover(cluster: Cluster, role: str) -> tuple[float, int]:
    """Seconds from the kill to the next version, and how many versions were rolled back."""
    before = cluster.reach(cluster.reach(0).version + 25)
    killed = cluster.kill_and_start(role)
    if role == "worker":
        # The round that it died in ends without it.
        cluster.reach(before.version + 2)
        return time.monotonic() - killed, 0
    first: int | None = None
    for status in cluster.statuses():
        if follows(status.job, before.job):
            first = status.version if first is None else first
            if status.version > first:
                return time.monotonic() - killed, before.version - first
    raise AssertionError


@click.command(context_settings=CONTEXT)
@number_option("--kills", 1, 5, "Of each role.")
@click.option("--every", default="10 versions", show_default=True, help="Between checkpoints.")
@click.option("--megabytes", type=float, default=4.0, show_default=True, help="Of the model.")
@click.option("--worker", is_flag=True, hidden=True)
@click.option("--hosts", hidden=True, default="")
@click.option("--index", hidden=True, default=0)
def main(kills: int, every: str, megabytes: float, worker: bool, hosts: str, index: int) -> None:
    """Seconds from a kill -9 to the next version, for a worker, a shard and server 0."""
    if worker:
        work(hosts, index, megabytes)
        return
    options = ("--policy", "sync", "--workers", "2", "--resume", "auto", "--checkpoint-every", every)
    with tempfile.TemporaryDirectory() as folder, Servers(Path(folder), 2, options) as servers:
        cluster = Cluster(servers, megabytes)
        try:
            for role in ROLES:
                found = [recover(cluster, role) for _ in range(kills)]
                seconds = [each[0] for each in found]
                rolled = statistics.median(each[1] for each in found)
                click.echo(
                    f"{role:9} {min(seconds):6.2f} to {max(seconds):6.2f} s, median {statistics.median(seconds):6.2f} s"
                    f"; versions rolled back: {rolled:g}"
                )
        finally:
            cluster.close()


if __name__ == "__main__":
    main(prog_name="bench availability recovery")
