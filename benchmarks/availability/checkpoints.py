"""`scripts/bench availability checkpoint`: what a checkpoint costs the training beside it, and a restore."""

import os
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import click
import psutil

from benchmarks.availability.running import WARM_UP, Servers, Step, gradient, initial, take
from benchmarks.swarm.swarm import cpu_of
from psserver.checkpoint import Store
from pswire.command.options import CONTEXT, number_option
from psworker import connect
from psworker.link import Link

# Steps before a checkpoint at least.
FEWEST = 6


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


def saved(folder: Path, version: int) -> str | None:
    """Return the complete checkpoint of that version."""
    store = Store(folder / "checkpoints")
    names = (path.parent.name for path in (folder / "checkpoints").glob("*/manifest.json"))
    return next((name for name in names if store.manifest(name).version == version), None)


def measured(folder: Path, megabytes: float, steps: int, compute: float) -> tuple[list[Cost], float, float]:
    """What a server's first checkpoint costs, and its second; seconds until a server without one could be joined, and
    with one to restore."""
    period = WARM_UP + steps
    every = ("--policy", "async", "--checkpoint-every", f"{period} versions", "--keep", "2")
    began = time.monotonic()
    with Servers(folder, 1, every) as servers:
        plain = time.monotonic() - began
        with connect(servers.hosts[0], initial(megabytes))._link as session:
            found = [checkpoint(servers, session, period, compute) for _ in range(2)]
            servers.kill(0)
    began = time.monotonic()
    with Servers(folder, 1, (*every, "--resume", "latest")):
        return found, plain, time.monotonic() - began


def checkpoint(servers: Servers, session: Link, period: int, compute: float) -> Cost:
    """Train until the next checkpoint that leaves time for usual steps before it is complete."""
    push, process = gradient(session), psutil.Process(servers.running[0].pid)
    folder, taken = servers.folder / "run", [take(session, push, compute)]
    due = -(-(taken[0].version + FEWEST) // period) * period
    while taken[-1].version < due:
        taken.append(take(session, push, compute))
    began, cpu, peak = taken[-1].end, cpu_of([process]), 0
    while (name := saved(folder, due)) is None:
        taken.append(take(session, push, compute))
        peak = max(peak, process.memory_info().rss)
    cpu, written = cpu_of([process]) - cpu, folder / "checkpoints" / name / "manifest.json"
    # Files have the time of day.
    ended = max(began, written.stat().st_mtime - time.time() + time.monotonic())
    nbytes = Store(folder / "checkpoints").manifest(name).nbytes
    return cost(taken[WARM_UP:], began, ended, nbytes, cpu, peak)


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
    root = Path(tempfile.mkdtemp(prefix="bench-checkpoint-", dir=folder)).resolve()
    try:
        found, plain, restored = measured(root / "job", mb, steps, compute)
        for name, each in zip(("first", "second"), found, strict=True):
            click.echo(f"{name} checkpoint\n{each.text()}")
        click.echo(
            f"restore                     {restored - plain:8.3f} s beyond a start without one ({plain:.3f} s)"
        )
    finally:
        shutil.rmtree(root)
    click.echo(f"machine: {os.cpu_count()} cores")
