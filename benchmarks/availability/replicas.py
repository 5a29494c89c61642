"""`scripts/bench availability replicas`: what the second copy costs a step, and a server that comes back."""

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
import numpy as np

from benchmarks.availability.running import WARM_UP, Servers, gradient, initial, take
from pswire.command.options import CONTEXT, number_option
from psworker import connect
from psworker.link import Link

# Megabytes of weights of the large model, also of the server that comes back; with Adam's slots 201.
LARGE: Final = 67.0
#: Servers without and with replicas, for as many parts; megabytes of weights; milliseconds that a step computes; and
#: whether its commit asks for the next ticket, as that of `fit` and training loops does, or a message of its own.
ROWS: Final = (
    ((1, 3), 0.26, 0.0, True),
    ((1, 3), 0.26, 2.0, True),
    ((1, 3), LARGE, 0.0, True),
    ((1, 3), LARGE, 100.0, True),
    ((1, 3), 0.26, 0.0, False),
    ((1, 3), 0.26, 2.0, False),
    ((2, 4), LARGE, 0.0, True),
)
PATIENCE: Final = 60.0


@dataclass
class Job:
    """A job and its only worker's session."""

    servers: Servers
    session: Link
    gradient: list[np.ndarray]

    def step(self, compute: float, asks: bool = True) -> float:
        """Take a step; return its seconds. `asks`: the commit asks for the next ticket."""
        return take(self.session, self.gradient, compute, asks).seconds

    def state(self, index: int) -> str:
        """Return the state of a server, as the leading one says."""
        status = self.servers.status()
        return "" if status is None else str(status.servers[index].state)


@contextmanager
def started(folder: Path, count: int, megabytes: float, copies: int) -> Iterator[Job]:
    """Run a job on `count` servers."""
    # The session asks for it.
    os.environ["PS_REPLICAS"] = str(copies)
    options = ("--policy", "async", "--replicas", str(copies), "--idle-timeout", "600")
    with Servers(folder, count, options) as servers:
        with connect(",".join(servers.hosts), initial(megabytes))._link as session:
            yield Job(servers, session, gradient(session))
            for index in range(count):
                servers.kill(index)


def cost(
    folder: Path,
    servers: tuple[int, int],
    megabytes: float,
    compute: float,
    asks: bool,
    rounds: int,
    seconds: float,
) -> str:
    """Return the row of one size: both jobs live at once, and take steps in turns."""
    few, many = servers
    with (
        started(folder / "alone", few, megabytes, 1) as alone,
        started(folder / "copied", many, megabytes, 2) as copied,
    ):
        jobs = (alone, copied)
        for job in jobs:
            for _ in range(WARM_UP):
                job.step(compute, asks)
        medians: list[tuple[float, float]] = []
        for _ in range(rounds):
            found = []
            for job in jobs:
                until, taken = time.monotonic() + seconds, []
                while time.monotonic() < until:
                    taken.append(job.step(compute, asks))
                found.append(statistics.median(taken))
            medians.append((found[0], found[1]))
    ratios = sorted(mine / its for its, mine in medians)
    without, with_copies = (1e3 * statistics.median(each) for each in zip(*medians, strict=True))
    return (
        f"{f'{few}, {many}':>8} {megabytes:8g} {1e3 * compute:10g} {'with it' if asks else 'apart':>8}"
        f" {without:12.2f} {with_copies:12.2f} {statistics.median(ratios):8.2f}"
        f"   ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    )


def rejoin(folder: Path, compute: float) -> str:
    """Return what a follower takes that is killed and started again, and the steps meanwhile."""
    with started(folder / "rejoin", 3, LARGE, 2) as job:
        usual = [job.step(compute) for _ in range(10 + WARM_UP)][WARM_UP:]
        job.servers.kill(1)
        while job.state(1) != "lost":
            job.step(compute)
        alone = [job.step(compute) for _ in range(10)]
        began, meanwhile, state = time.monotonic(), [], ""
        with ThreadPoolExecutor(1) as pool:
            starting = pool.submit(job.servers.start_again, 1)
            while not starting.done():
                job.step(compute)
            starting.result()
        ready = time.monotonic()
        while state != "in sync" and time.monotonic() < ready + PATIENCE:
            meanwhile.append(job.step(compute))
            state = job.state(1)
        took, since = time.monotonic() - began, time.monotonic() - ready
        if state != "in sync":
            raise click.ClickException(f"server 1 had no copy after {PATIENCE:g} s")
    middle = statistics.median
    return (
        f"a server that is started again is in sync after {took:.2f} s, {since:.2f} s after it is ready "
        f"({3 * LARGE:.0f} MB with Adam's slots)\n"
        f"steps: {1e3 * middle(usual):.1f} ms with both copies, {1e3 * middle(alone):.1f} with one, "
        f"{1e3 * middle(meanwhile):.1f} while it gets its copy (longest {1e3 * max(meanwhile):.1f}, "
        f"{len(meanwhile)} steps)"
    )


@click.command(context_settings=CONTEXT)
@number_option("--seconds", 0.1, 3.0, "Of each turn.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Turns of each job.")
def main(seconds: float, rounds: int) -> None:
    """Measure what `--replicas 2` costs on this machine.

    One worker and servers with Adam, `async`. Two jobs of the same size take turns: one server, and three of which two
    hold copies; or two servers, and four. A step asks for the next ticket with its commit, as training loops do, or
    apart from it. Then a follower of a larger job is killed and started again while the job trains.
    """
    root = Path(tempfile.mkdtemp(prefix="bench-replicas-"))
    try:
        _measure(root, rounds, seconds)
    finally:
        shutil.rmtree(root)
    click.echo(f"machine: {os.cpu_count()} cores")


def _measure(root: Path, rounds: int, seconds: float) -> None:
    click.echo(
        f"{'servers':>8} {'MB':>8} {'compute ms':>10} {'asks':>8} {'alone, ms':>12} {'replicas, ms':>12} {'ratio':>8}"
        f"   (of {rounds} turns)"
    )
    for number, (servers, megabytes, compute, asks) in enumerate(ROWS):
        (root / str(number)).mkdir()
        click.echo(cost(root / str(number), servers, megabytes, compute / 1e3, asks, rounds, seconds))
    for compute in (0.0, 0.1):
        (root / f"rejoin-{compute}").mkdir()
        click.echo(f"each step computes {1e3 * compute:g} ms: {rejoin(root / f'rejoin-{compute}', compute)}")
