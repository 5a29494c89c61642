"""`scripts/bench availability checkpoint`: what a checkpoint costs the training beside it, and a restore."""

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import psutil

from psserver.checkpoint import Store
from pswire.command.options import CONTEXT, number_option
from psworker import Session, connect

# Steps before those that count, and in all before a checkpoint at least.
WARM_UP, FEWEST = 3, 6


@dataclass(frozen=True, slots=True)
class Step:
    """When it ended, and how long it took; in seconds."""

    end: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one checkpoint. `usual`: the median of steps without one; `lost`: what steps beside it took beyond that, all
    together; `pause`: the same of the longest. `cpu`: of the server, meanwhile. All in seconds."""

    nbytes: int
    usual: float
    seconds: float
    steps: int
    lost: float
    pause: float
    cpu: float
    peak: int

    def text(self) -> str:
        rate = self.nbytes / self.seconds / 1e6
        return (
            f"a usual step                {self.usual:8.3f} s\n"
            f"checkpoint                  {self.seconds:8.3f} s for {self.nbytes / 1e6:.0f} MB ({rate:.0f} MB/s)\n"
            f"steps meanwhile             {self.steps:8d}\n"
            f"longest of them, beyond a usual one {self.pause:.3f} s\n"
            f"all of them, beyond usual ones      {self.lost:.3f} s "
            f"({self.lost / 60:.1%} of the time with one each minute)\n"
            f"server's CPU meanwhile      {self.cpu:8.3f} s\n"
            f"server's memory at most     {self.peak / 1e6:8.0f} MB"
        )


def cost(steps: list[Step], began: float, ended: float, nbytes: int, cpu: float, peak: int) -> Cost:
    """Of the checkpoint that was ordered at `began` and complete at `ended`. `steps`: in order, the ones before it
    among them. A step counts as one beside it if any of it was."""
    before = [step.seconds for step in steps if step.end <= began]
    beside = [step for step in steps if step.end > began and step.end - step.seconds < ended]
    usual = statistics.median(before)
    more = [step.seconds - usual for step in beside]
    return Cost(nbytes, usual, ended - began, len(beside), sum(more), max(more, default=0.0), cpu, peak)


class Server:
    """A ps-server with Adam and one worker's room. `ready`: seconds from its start until it could be joined."""

    def __init__(self, folder: Path, *options: str) -> None:
        began = time.monotonic()
        command = [
            sys.executable,
            "-m",
            "psserver",
            "--ps-hosts",
            "127.0.0.1:0",
            "--json",
            "--policy",
            "async",
        ]
        command += ["--optimizer", "adam", "--out", str(folder), "--parent", str(os.getpid()), *options]
        with (folder.parent / "server.log").open("ab") as log:
            self._popen = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            said: dict[str, Any] = json.loads(line)
            if said["event"] == "ready":
                self.address = str(said["address"])
                break
        else:
            raise click.ClickException(f"the server did not start: see {folder.parent / 'server.log'}")
        self.ready = time.monotonic() - began
        self._process = psutil.Process(self._popen.pid)

    @property
    def cpu(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)

    @property
    def memory(self) -> int:
        return int(self._process.memory_info().rss)

    def kill(self) -> None:
        self._popen.send_signal(signal.SIGKILL)
        self._popen.wait()
        assert self._popen.stdout is not None
        self._popen.stdout.close()


@contextmanager
def started(folder: Path, *options: str) -> Iterator[Server]:
    server = Server(folder, *options)
    try:
        yield server
    finally:
        server.kill()


def take(session: Session, gradient: list[np.ndarray], compute: float, asks: bool = False) -> Step:
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
    return Step(ended, ended - began)


def complete(folder: Path) -> list[str]:
    return [path.parent.name for path in sorted((folder / "checkpoints").glob("*/manifest.json"))]


def saved(folder: Path, version: int) -> str | None:
    """The complete checkpoint of that version."""
    store = Store(folder / "checkpoints")
    return next((name for name in complete(folder) if store.manifest(name).version == version), None)


def measured(folder: Path, elements: int, steps: int, compute: float) -> tuple[list[Cost], float, float]:
    """What a server's first checkpoint costs, and its second; seconds until a server without one could be joined, and
    with one to restore."""
    rng = np.random.default_rng(0)
    start = {"w": rng.normal(size=elements).astype(np.float32)}
    period = WARM_UP + steps
    every = ("--checkpoint-every", f"{period}v", "--keep", "2")
    with started(folder, *every) as server:
        plain = server.ready
        with connect(server.address, start) as session:
            gradient = [np.full(shard.elements, 1e-3, np.float32) for shard in session.plan.shards]
            version = 0

            def step() -> Step:
                nonlocal version
                version += 1
                return take(session, gradient, compute)

            found: list[Cost] = []
            for _ in range(2):
                # The next one that leaves time for usual steps before it.
                due = -(-(version + FEWEST) // period) * period
                taken = [step() for _ in range(due - version)]
                # The last of them has made the version that is to be saved.
                began, cpu, peak = taken[-1].end, server.cpu, server.memory
                while (name := saved(folder, due)) is None:
                    taken.append(step())
                    peak = max(peak, server.memory)
                cpu, written = server.cpu - cpu, folder / "checkpoints" / name / "manifest.json"
                # Files have the time of day.
                ended = max(began, written.stat().st_mtime - time.time() + time.monotonic())
                nbytes = Store(folder / "checkpoints").manifest(name).nbytes
                found.append(cost(taken[WARM_UP:], began, ended, nbytes, cpu, peak))
            server.kill()
    with started(folder, *every, "--resume", "latest") as server:
        return found, plain, server.ready


@click.command(context_settings=CONTEXT)
@number_option("--mb", 0.1, 1000.0, "Of weights.")
@number_option("--steps", 3, 10, "Before the checkpoint.")
@number_option("--compute", 0, 1.0, "Seconds that a step computes, which costs no CPU here.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="On the disk to measure; it is removed. Default: a temporary one.",
)
def main(mb: float, steps: int, compute: float, folder: Path | None) -> None:
    """Train a model of --mb with Adam on one server, take two checkpoints meanwhile; kill the server, and restore.

    A model of 1000 MB needs 12 GB of memory and 6 GB of disk.
    """
    root = Path(tempfile.mkdtemp(prefix="bench-checkpoint-", dir=folder))
    try:
        found, plain, restored = measured(root / "run", int(mb * 1e6 / 4), steps, compute)
        for name, each in zip(("first", "second"), found, strict=True):
            click.echo(f"{name} checkpoint\n{each.text()}")
        click.echo(
            f"restore                     {restored - plain:8.3f} s beyond a start without one ({plain:.3f} s)"
        )
    finally:
        shutil.rmtree(root)
    click.echo(f"machine: {os.cpu_count()} cores")
