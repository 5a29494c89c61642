"""The command `scripts/bench tables`."""

import json
import statistics
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.loads import Load
from benchmarks.peers import Burst, watched
from benchmarks.peers.child import ROOT, Child, together
from benchmarks.peers.ours import CPU_ONLY, start_servers
from benchmarks.peers.theirs import Cluster
from benchmarks.report.results import machine_facts
from benchmarks.tables import load
from pswire.command.options import CONTEXT

console = Console(width=120)
# Steps of each worker in a burst.
STEPS = 60
SERVER = ("--optimizer", "adagrad", "--learning-rate", str(load.RATE))


class Peer(Protocol):
    """A running system. `losses`: of the first steps of worker 0."""

    name: str
    losses: list[float]

    def measure(self, steps: int) -> Burst: ...


class Strategy:
    """TensorFlow's strategy with one server and one worker."""

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
    """Servers and workers of ours, under `async`."""

    def __init__(
        self, name: str, logs: Path, divisor: int, *, servers: int, workers: int, ahead: bool
    ) -> None:
        self.name, self.losses = name, list[float]()
        label = name.replace(" ", "-").replace(",", "")
        with ExitStack() as begun:
            at = Load(name, [], servers=servers, workers=workers)
            self._servers, hosts = start_servers(label, at, SERVER, logs)
            for server in self._servers:
                begun.callback(server.close, 0.0)
            self._workers = []
            for index in range(workers):
                log = logs / f"{label}-worker-{index}.log"
                child = Child(f"{label}-{index}", ["-m", "benchmarks.tables.ours"], log, CPU_ONLY)
                begun.callback(child.close)
                self._workers.append(child)
            for index, child in enumerate(self._workers):
                child.ask("prepare", hosts=hosts, worker=index, divisor=divisor, ahead=ahead)
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
    """Steps per second of each burst, and CPU milliseconds per step of servers and of all other processes."""

    peer: str
    rates: list[float] = field(default_factory=list)
    server_ms: list[float] = field(default_factory=list)
    other_ms: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)


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
    folder = out or ROOT / "runs" / f"tables-{datetime.now():%Y%m%d-%H%M%S}"
    folder.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()

    def say(text: str) -> None:
        console.print(f"{time.monotonic() - begin:4.0f} s  {text}", soft_wrap=True, highlight=False)

    makers: dict[str, Any] = {
        f"TensorFlow, {form}, pack {pack}": lambda name, merged=merged, pack=pack: Strategy(
            name, folder, divisor, merged=merged, pack=pack
        )
        for form, merged in (("26 tables", False), ("merged", True))
        for pack in (1, 8)
    }
    makers |= {
        f"ours, {servers} server{'s' * (servers > 1)}, {workers} worker{'s' * (workers > 1)}{text}": (
            lambda name, s=servers, w=workers, a=ahead: Ours(
                name, folder, divisor, servers=s, workers=w, ahead=a
            )
        )
        for servers, workers, text, ahead in (
            (1, 1, "", False),
            (1, 1, ", lookahead", True),
            (2, 1, ", lookahead", True),
            (1, 2, ", lookahead", True),
        )
    }
    rows: dict[str, Row] = {}
    with ExitStack() as running:
        peers: list[Any] = []
        for name, make in makers.items():
            if only and not any(text in name for text in only):
                continue
            say(f"starting {name}")
            peers.append(make(name))
            running.callback(peers[-1].close)
        for turn in range(rounds + 1):
            for peer in peers:
                burst = peer.measure(STEPS)
                if turn:  # the first traces
                    row = rows.setdefault(peer.name, Row(peer.name))
                    row.rates.append(burst.rate)
                    row.server_ms.append(1000 * burst.server_cpu / burst.steps)
                    row.other_ms.append(1000 * burst.worker_cpu / burst.steps)
            say(f"round {turn} of {rounds}")
        _report(rows, peers)
    record = {"machine": machine_facts(), "divisor": divisor, "rows": [asdict(row) for row in rows.values()]}
    (folder / "results.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    say(f"all samples: {folder / 'results.json'}")


def _report(rows: dict[str, Row], peers: list[Any]) -> None:
    unique = np.mean([sum(np.unique(c).size for c in batch.ids.T) for batch in load.batches(0, 10)])
    table = Table(title=f"steps/s, batches of {load.BATCH}, {unique:,.0f} unique rows each")
    headings = ("peer", "steps/s", "of 26 tables", "of merged", "CPU ms: server", "others", "first losses")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "peer" else "right")
    best = {
        form: max((row.rate for name, row in rows.items() if form in name), default=float("nan"))
        for form in ("26 tables", "merged")
    }
    for peer in peers:
        row = rows[peer.name]
        spread = 100 * (max(row.rates) - min(row.rates)) / 2 / row.rate
        table.add_row(
            peer.name,
            f"{row.rate:.1f} ±{spread:.0f}%",
            *(f"{row.rate / best[form]:.2f}" for form in best),
            *(f"{statistics.median(each):.1f}" for each in (row.server_ms, row.other_ms)),
            " ".join(f"{loss:.5f}" for loss in peer.losses[:3]),
        )
    console.print(table)
