"""The command `scripts/bench large-table`: a table that fills the memory, on a real server.

A worker makes rows until the table is as large as asked for, then trains a click model over it. Meanwhile the server
takes a checkpoint. Then it is killed, and another one goes on from the newest checkpoint: it must repeat the last steps
to the same bits.
"""

import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import numpy as np
import psutil
from rich.console import Console

from benchmarks.loads import Load
from benchmarks.peers.child import ROOT, Child
from benchmarks.peers.ours import CPU_ONLY, start_servers
from benchmarks.report.results import machine_facts
from benchmarks.tables.large_worker import fill_steps
from pslab.display.tables import figures_of
from pslab.launch.status_client import StatusClient
from psserver.checkpoint import Store
from pswire.command.options import CONTEXT

console = Console(width=120)
# Steps of training before the checkpoint, and after the last one before the server is killed.
BEFORE, AFTER = 200, 20
# Seconds that a command of the worker may take; and a server that restores.
PATIENCE = 4 * 3600.0
# Seconds between two looks at memory and checkpoints.
PERIOD = 0.1
# A wait that is longer is one too many.
LONGEST = 0.05


@dataclass(frozen=True, slots=True)
class Waits:
    """Milliseconds from sending a step until the rows of the next version are here, the update included."""

    number: int
    median: float
    p99: float
    p999: float
    longest: float
    over: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Waits":
        """Summarise waits."""
        ms = 1000 * np.array(seconds or [0.0])
        median, p99, p999 = np.percentile(ms, [50, 99, 99.9])
        over = int(np.count_nonzero(ms > 1000 * LONGEST))
        return cls(len(seconds), float(median), float(p99), float(p999), float(ms.max()), over)

    def __str__(self) -> str:
        return (
            f"{self.number:,}: median {self.median:.1f} ms, 99 % {self.p99:.1f}, 99.9 % {self.p999:.1f}, "
            f"longest {self.longest:.0f}; {self.over} over {1000 * LONGEST:.0f} ms"
        )


class Watcher:
    """Looks at a server's memory and at its checkpoints, in a thread. `peak`: the most memory in bytes.

    `written`: when the first complete checkpoint was seen, and its version; None before. Ends the server if the
    machine has less than `leave` bytes of memory left; `short` says so.
    """

    def __init__(self, pid: int, folder: Path, leave: int) -> None:
        self.peak, self.short = 0, False
        self.written: tuple[float, int] | None = None
        self._process, self._folder, self._leave = psutil.Process(pid), folder, leave
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def memory(self) -> int:
        """The server's memory in bytes."""
        return int(self._process.memory_info().rss)

    def _run(self) -> None:
        while not self._over.wait(PERIOD):
            try:
                self.peak = max(self.peak, self.memory)
                found = complete(self._folder) if self.written is None else []
                if found:
                    self.written = time.monotonic(), Store(found[0].parent).manifest(found[0].name).version
                if psutil.virtual_memory().available < self._leave:
                    self.short = True
                    self._process.kill()
            except psutil.NoSuchProcess:
                return

    def __enter__(self) -> "Watcher":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


@dataclass(frozen=True, slots=True)
class Found:
    """What was measured. Bytes and seconds, but for `Waits`.

    `process`: the memory that the server's process took for rows; `ledger`: the memory of rows and index in its own
    account. `late`: by how much a sleeping thread of the worker woke up too late.
    """

    rows: int
    dim: int
    filled: int
    fill_seconds: float
    fill: Waits
    process: int
    ledger: int
    training: Waits
    beside: Waits
    late: Waits
    losses: list[float]
    checkpoint_seconds: float
    checkpoint_bytes: int
    peak: int
    restore_seconds: float
    restored_peak: int
    restored: int
    repeated: int
    equal: bool

    def text(self) -> str:
        """Return the report."""
        rate = self.checkpoint_bytes / max(self.checkpoint_seconds, 1e-9) / 1e6
        return "\n".join(
            [
                f"rows                 {self.rows:,} of {self.dim} numbers",
                f"made beforehand      {self.filled:,} in {self.fill_seconds:.0f} s: "
                f"{self.filled / self.fill_seconds:,.0f} a second",
                f"bytes per row        {self.process / self.rows:.1f} of the process, "
                f"{self.ledger / self.rows:.1f} by the ledger",
                f"waits while filling  {self.fill}",
                f"waits in training    {self.training}",
                f"beside a checkpoint  {self.beside}",
                f"a sleeping thread    {self.late}",
                f"losses               {' '.join(f'{loss:.5f}' for loss in self.losses)}",
                f"checkpoint           {self.checkpoint_seconds:.1f} s for {self.checkpoint_bytes / 1e6:,.0f} MB "
                f"({rate:.0f} MB/s); the server's memory at most {self.peak / 1e6:,.0f} MB",
                f"restore              {self.restore_seconds:.1f} s; memory at most "
                f"{self.restored_peak / 1e6:,.0f} MB, then {self.restored / 1e6:,.0f} MB",
                f"{self.repeated} steps repeated: "
                + ("all rows equal to the bit" if self.equal else "THE ROWS DIFFER"),
            ]
        )


def measure(rows: int, dim: int, seconds: float, root: Path, leave: int, say: Callable[[str], None]) -> Found:
    """Fill a table, train, kill, restore, and repeat. `root`: an empty folder. Raises ChildError, ClickException."""
    steps, out = fill_steps(rows), root / "run"
    order = steps + BEFORE
    every = ("--checkpoint-every", f"{order}v", "--keep", "1")
    with started(root, every, out) as (server, hosts):
        worker = _worker(root, hosts, rows, dim)
        with Watcher(server.pid, out, leave) as watcher, worker:
            try:
                before = watcher.memory
                say(f"making {steps * (rows - rows // 20) // steps:,} rows in {steps:,} steps")
                filled = worker.ask_long("fill", steps=steps)
                process, (figures, total) = watcher.memory - before, _figures(hosts)
                say(
                    f"made {figures.rows:,} rows: {process / figures.rows:.1f} bytes each of the process, "
                    f"{figures.nbytes / figures.rows:.1f} by the ledger, which has {total / 1e6:,.0f} MB in all"
                )
                trained = worker.ask_long("train", seconds=seconds)
                # No order of a checkpoint may be on its way, and some steps are to be repeated.
                while watcher.written is None:
                    more = worker.ask_long("train", seconds=5.0)
                    trained = _joined(trained, more)
                last = trained["version"] + AFTER
                more = worker.ask_long("train", until=last if last % order else last + 1)
                trained = _joined(trained, more)
                process, (figures, _) = watcher.memory - before, _figures(hosts)
                say(f"trained to version {trained['version']:,}; all rows are read")
                digest = worker.ask_long("digest")["sha256"]
                # Before the worker ends, and with it the job.
                psutil.Process(server.pid).kill()
            except Exception:
                if watcher.short:
                    raise click.ClickException(
                        f"the machine had less than {leave / 2**30:.0f} GiB of memory left"
                    ) from None
                raise
            peak, (ended, saved) = watcher.peak, watcher.written
    newest = complete(out)[-1]
    about = Store(newest.parent).manifest(newest.name)
    say(f"killed; restoring version {about.version:,}")
    began = time.monotonic()
    with started(root, (*every, "--resume", "latest"), out) as (server, hosts):
        restore, worker = time.monotonic() - began, _worker(root, hosts, rows, dim)
        with Watcher(server.pid, out, leave) as watcher, worker:
            # The peak of the time before is in the system's account.
            restored_peak, restored = _peak(server.pid), watcher.memory
            version = worker.ask_long("version")["version"]
            worker.ask_long("train", until=trained["version"])
            again = worker.ask_long("digest")["sha256"]
    # The step was sent that made this version.
    order_time = trained["waits"][saved - 1 - (trained["version"] - len(trained["waits"]))][0]
    beside = [wait for at, wait in trained["waits"] if at + wait > order_time and at < ended]
    alone = [wait for at, wait in trained["waits"] if at + wait <= order_time or at >= ended]
    return Found(
        rows=figures.rows,
        dim=dim,
        filled=filled["rows"],
        fill_seconds=filled["seconds"],
        fill=Waits.of(filled["waits"]),
        process=process,
        ledger=figures.nbytes,
        training=Waits.of(alone),
        beside=Waits.of(beside),
        late=Waits.of(trained["late"]),
        losses=[float(np.mean(part)) for part in np.array_split(trained["losses"], 5)],
        checkpoint_seconds=ended - order_time,
        checkpoint_bytes=about.nbytes,
        peak=peak,
        restore_seconds=restore,
        restored_peak=restored_peak,
        restored=restored,
        repeated=trained["version"] - version,
        equal=digest == again,
    )


def _joined(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {
        **other,
        "waits": one["waits"] + other["waits"],
        "late": one["late"] + other["late"],
        "losses": one["losses"] + other["losses"],
    }


def complete(folder: Path) -> list[Path]:
    """Return the folders of complete checkpoints, in order."""
    return [path.parent for path in sorted((folder / "checkpoints").glob("*/manifest.json"))]


class _Worker(Child):
    """A child whose answers may take long."""

    def ask_long(self, do: str, **fields: Any) -> dict[str, Any]:
        """As `ask`, with more patience."""
        self.send(do, **fields)
        return self.receive(PATIENCE)

    def __enter__(self) -> "_Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close(0.0)


def _worker(root: Path, hosts: str, rows: int, dim: int) -> _Worker:
    worker = _Worker("worker", ["-m", "benchmarks.tables.large_worker"], root / "worker.log", CPU_ONLY)
    worker.ask_long("connect", hosts=hosts, rows=rows, dim=dim)
    return worker


@contextmanager
def started(root: Path, options: Sequence[str], out: Path) -> Iterator[tuple[Child, str]]:
    """A server, which ends with the block; and its address."""
    servers, hosts = start_servers("large", Load("large-table"), options, root, out=out, patience=PATIENCE)
    try:
        yield servers[0], hosts
    finally:
        servers[0].close(0.0)


def _figures(hosts: str) -> tuple[Any, int]:
    client = StatusClient(hosts, timeout=60.0)
    try:
        status = client.ask()
    finally:
        client.close()
    (figures,) = figures_of(status)
    return figures, int(status.servers[0].memory.total)


def _peak(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


@click.command(context_settings=CONTEXT)
@click.option("--rows", type=click.IntRange(min=100_000), default=100_000_000, show_default=True)
@click.option("--dim", type=click.IntRange(min=1), default=8, show_default=True)
@click.option(
    "--minutes", type=click.FloatRange(min=0.01), default=10.0, show_default=True, help="Of training."
)
@click.option(
    "--leave",
    type=click.FloatRange(min=0),
    default=3.0,
    show_default=True,
    help="End the server when the machine has fewer GiB of memory left.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="On the disk for checkpoints; what is made in it is removed. Default: a temporary one.",
)
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Default: runs/large-table-TIME."
)
def main(rows: int, dim: int, minutes: float, leave: float, folder: Path | None, out: Path | None) -> None:
    """Fill a table with row-wise Adagrad on a server, train over it, take a checkpoint meanwhile, kill, and restore.

    The ids of batches are those of "bench tables", with vocabularies as large as --rows; one of twenty ids has no row
    before training. A wait lasts from sending a step until the rows of the next version are here. 100 million rows of
    8 numbers take 7 GB, 14 while they are restored, and 5 on the disk.
    """
    begin = time.monotonic()

    def say(text: str) -> None:
        console.print(f"{time.monotonic() - begin:5.0f} s  {text}", soft_wrap=True, highlight=False)

    kept = out or ROOT / "runs" / f"large-table-{datetime.now():%Y%m%d-%H%M%S}"
    kept.mkdir(parents=True, exist_ok=True)
    root = Path(tempfile.mkdtemp(prefix="bench-large-table-", dir=folder))
    loads = [os.getloadavg()[0]]
    try:
        found = measure(rows, dim, 60 * minutes, root, int(leave * 2**30), say)
    finally:
        for log in root.glob("*.log"):
            shutil.copy(log, kept)
        shutil.rmtree(root)
    loads.append(os.getloadavg()[0])
    console.print(found.text(), soft_wrap=True, highlight=False)
    record = {"machine": machine_facts(), "load": loads, **asdict(found)}
    (kept / "results.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    say(f"all figures: {kept / 'results.json'}; load {loads[0]:.1f} before, {loads[1]:.1f} after")
