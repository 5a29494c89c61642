"""The command `scripts/bench tables`."""

import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.loads import Load
from benchmarks.peers import Burst, watched
from benchmarks.peers.child import Child, together
from benchmarks.peers.ours import CPU_ONLY, start_servers
from benchmarks.peers.theirs import Cluster
from benchmarks.report import console, folder_of, headed, plain, progress, write_results
from benchmarks.rounds import Say
from benchmarks.samples import collected
from benchmarks.tables import load
from pswire.command.options import CONTEXT

# Steps of each worker in a burst.
STEPS = 60
SERVER = ("--optimizer", "adagrad", "--learning-rate", str(load.RATE))


class Strategy:
    """TensorFlow's strategy with one server and one worker. `losses`: of its first steps."""

    def __init__(self, name: str, logs: Path, divisor: int, *, merged: bool, pack: int) -> None:
        self.name, self.losses = name, list[float]()
        self._cluster = Cluster(1, logs / name.replace(" ", "-"), "benchmarks.tables.chief")
        self._cluster.chief.ask("prepare", load=name, merged=merged, divisor=divisor, pack=pack)

    def measure(self, steps: int) -> Burst:
        def run() -> list[dict[str, Any]]:
            told = self._cluster.chief.ask("measure", load=self.name, steps=steps)
            self.losses = told["losses"]
            return [told]

        return watched([self._cluster.server], run, self._cluster.others)

    def close(self) -> None:
        self._cluster.close()


class Ours:
    """Servers and workers of ours, under `async`. `losses`: of the first steps of worker 0."""

    def __init__(self, name: str, logs: Path, divisor: int, *, servers: int, workers: int) -> None:
        self.name, self.losses = name, list[float]()
        label = name.replace(" ", "-").replace(",", "")
        with ExitStack() as begun:
            size = Load(name, (), servers=servers, workers=workers)
            self._servers, hosts = start_servers(label, size, SERVER, logs)
            for server in self._servers:
                begun.callback(server.close, 0.0)
            self._workers = []
            for index in range(workers):
                log = logs / f"{label}-worker-{index}.log"
                program = ["-m", "benchmarks.tables.ours"]
                child = Child(f"{label}-{index}", program, log, CPU_ONLY)
                begun.callback(child.close)
                self._workers.append(child)
            for index, child in enumerate(self._workers):
                child.ask("prepare", hosts=hosts, worker=index, divisor=divisor)
            self._close = begun.pop_all().close

    def measure(self, steps: int) -> Burst:
        def run() -> list[dict[str, Any]]:
            told = together(self._workers, "measure", steps=steps)
            self.losses = told[0]["losses"]
            return told

        return watched([s.pid for s in self._servers], run, [w.pid for w in self._workers])

    def close(self) -> None:
        self._close()


@dataclass
class Row:
    """Of each burst: steps per second, and CPU milliseconds per step of servers and of all other processes."""

    peer: str
    rates: list[float] = field(default_factory=list)
    server_ms: list[float] = field(default_factory=list)
    other_ms: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    def add(self, burst: Burst) -> None:
        """Add a burst."""
        self.rates.append(burst.rate)
        self.server_ms.append(1000 * burst.server_cpu / burst.steps)
        self.other_ms.append(1000 * burst.worker_cpu / burst.steps)


@click.command(context_settings=CONTEXT)
@click.option(
    "--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Bursts of each peer."
)
@click.option(
    "--divisor",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Divides Criteo's vocabularies: TensorFlow holds all rows, of which 1 needs 4 GiB.",
)
@click.option("--peer", "only", multiple=True, metavar="TEXT", help="Only peers whose name has this in it.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Default: runs/tables-TIME.")
def main(rounds: int, divisor: int, only: tuple[str, ...], out: Path | None) -> None:
    """Measure steps of a click model on sparse tables, beside TensorFlow's strategy, on one machine.

    26 features with Criteo's cardinalities, rows of 16, batches of 2,048, Adagrad. TensorFlow's strategy holds a
    variable for each feature, or one merged variable, and has packs of 1 or 8 steps; the better counts. All peers run
    side by side and take turns; the losses of their first steps must agree.
    """
    folder = folder_of("tables", out)
    with progress() as say, ExitStack() as running:
        peers: list[Any] = []
        for name, make in _makers(folder, divisor).items():
            if only and not any(text in name for text in only):
                continue
            say(f"starting {name}")
            peers.append(make(name))
            running.callback(peers[-1].close)
        rows = _measured(peers, rounds, say)
    _report(rows, peers, divisor)
    found = [asdict(row) for row in rows.values()]
    path = write_results(folder, divisor=divisor, rows=found)
    console.print(f"all samples: {path}", soft_wrap=True)


def _measured(peers: Sequence[Any], rounds: int, say: Say) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for turn in range(rounds + 1):
        for peer in peers:
            burst = peer.measure(STEPS)
            if turn:  # the first traces
                rows.setdefault(peer.name, Row(peer.name)).add(burst)
        say(f"round {turn} of {rounds}")
    return rows


def _makers(folder: Path, divisor: int) -> dict[str, Any]:
    """Return what starts each peer, by name."""
    makers: dict[str, Any] = {
        f"TensorFlow, {form}, pack {pack}": lambda name, merged=merged, pack=pack: Strategy(
            name, folder, divisor, merged=merged, pack=pack
        )
        for form, merged in (("26 tables", False), ("merged", True))
        for pack in (1, 8)
    }
    return makers | {
        f"ours, {servers} server{'s' * (servers > 1)}, {workers} worker{'s' * (workers > 1)}": (
            lambda name, s=servers, w=workers: Ours(name, folder, divisor, servers=s, workers=w)
        )
        for servers, workers in ((1, 1), (2, 1), (1, 2))
    }


def _report(rows: dict[str, Row], peers: list[Any], divisor: int) -> None:
    unique = np.mean([sum(np.unique(c).size for c in batch.ids.T) for batch in load.batches(0, divisor)])
    headings = ["peer", "steps/s", "of 26 tables", "of merged", "CPU ms: server", "others", "first losses"]
    table = headed(f"steps/s, batches of {load.BATCH}, {unique:,.0f} unique rows each", *headings)
    best = {
        form: max((row.rate for name, row in rows.items() if form in name), default=float("nan"))
        for form in ("26 tables", "merged")
    }
    for peer in peers:
        row = rows[peer.name]
        table.add_row(
            peer.name,
            plain(collected(row.rates)),
            *(f"{row.rate / best[form]:.2f}" for form in best),
            *(f"{statistics.median(each):.1f}" for each in (row.server_ms, row.other_ms)),
            " ".join(f"{loss:.5f}" for loss in peer.losses[:3]),
        )
    console.print(table)
