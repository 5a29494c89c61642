"""The command `scripts/bench rows`: what a table needs per row, beside a probe of as many random lines of memory.

The probe touches the places that an update must touch, in arrays of the same size: of the index a key with its slot,
which it reads, and all words of the row, which it reads and writes. Its addresses are known beforehand, and it computes
nothing. "One line" reads and writes 64 bytes per row and has no index. Probe and updates take turns. Times are CPU time
of the thread; the best of each counts, because other programs only ever add time.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import numba
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table as Printed

from benchmarks.report.results import machine_facts
from psserver.fast import FastBackend
from psserver.optimizers import build
from psserver.optimizers.rows import rows_optimizer
from psserver.shard.tables import Advance, Contribution, Table
from pswire.command.options import CONTEXT
from pswire.command.process import keep_large_blocks
from pswire.model.tables import TableSpec, mix

console = Console(width=120)
RULES: Final = ("sgd", "adagrad", "rowwise-adagrad", "adam")
# Unique rows of a batch of 2,048 with 26 features, for which the bars are meant.
BATCH: Final = 15_700


@dataclass(frozen=True, slots=True)
class Figures:
    """Nanoseconds per row of `batch` rows in a table of `rows`; bytes per row."""

    rule: str
    rows: int
    dim: int
    batch: int
    one_line: float
    probe: float
    read: float
    update: float
    bytes_per_row: float
    fill_seconds: float
    # Milliseconds of the longest update that made a batch of new rows.
    longest: float


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def _touch_row(
    index: NDArray[np.uint32],
    places: NDArray[np.int64],
    rows: NDArray[np.uint32],
    at: NDArray[np.int64],
) -> int:
    total = 0
    for i in range(at.size):
        if places.size:
            total += index[places[i], 0] & np.uint32(1)
            total += index[places[i], 2]
        row = at[i]
        for j in range(rows.shape[1]):
            rows[row, j] += np.uint32(1)
    return total


def _nanoseconds(run: Callable[[], object], rows: int) -> float:
    begin = time.thread_time_ns()
    run()
    return (time.thread_time_ns() - begin) / rows


class _Probe:
    """Random lines of arrays as large as a table's. `words`: 4 bytes each, of a row."""

    def __init__(self, rows: int, words: int, places: int) -> None:
        # Ones, because pages of zeros that nothing has written exist only once.
        self._lines = np.ones((rows, words), np.uint32)
        self._index = np.ones((places, 3), np.uint32)

    def measure(self, batch: int, random: np.random.Generator) -> float:
        at = random.choice(len(self._lines), batch)
        places = random.integers(0, len(self._index), batch) if len(self._index) else at[:0]
        return _nanoseconds(lambda: _touch_row(self._index, places, self._lines, at), batch)


def _update(table: Table, contribution: Contribution) -> None:
    Advance([(table, [contribution])], 0.5, 1.0, keep=True).finish()


def _filled(table: Table, rows: int) -> tuple[float, float]:
    """Make rows of ids from 0, a batch at a time; return the seconds it took, and those of the longest update."""
    begin, longest = time.perf_counter(), 0.0
    for start in range(0, rows, BATCH):
        keys = np.sort(mix(np.arange(start, min(start + BATCH, rows))))
        ones = np.ones((keys.size, table.spec.dim), np.float32)
        began = time.thread_time()
        Advance([(table, [(keys, ones, 1.0)])], 1.0, 1.0, keep=False).finish()
        longest = max(longest, time.thread_time() - began)
    return time.perf_counter() - begin, longest


def measure(rule: str, rows: int, dim: int, repeats: int, batch: int = BATCH) -> Figures:
    """Fill a table, and measure reads and updates of random rows, on one thread."""
    random = np.random.default_rng(0)
    optimizer = rows_optimizer({"name": rule}, build({"name": "sgd"}))
    with FastBackend() as backend:
        backend.prepare(
            optimizer.variants, rows=True, passes=[optimizer.one_pass] if optimizer.one_pass else []
        )
        if not backend.wait_ready():
            raise click.ClickException(f"the kernels are not compiled: {backend.reason}")
        table = Table(TableSpec("t", dim), optimizer, backend)
        seconds, longest = _filled(table, rows)
        words = table.row_bytes // 4
        probes = {"one_line": _Probe(rows, 16, 0), "probe": _Probe(rows, words, round(rows / table.load))}
        found: dict[str, list[float]] = {}
        for _ in range(repeats + 1):
            keys = np.sort(mix(random.choice(rows, min(batch, rows // 2), replace=False)))
            gradients = random.standard_normal((keys.size, dim), np.float32)
            for name, probe in probes.items():
                found.setdefault(name, []).append(probe.measure(keys.size, random))
            advance = partial(_update, table, (keys, gradients, 1.0))
            found.setdefault("update", []).append(_nanoseconds(advance, keys.size))
            table.forget(table.version)
            # As in messages.
            other = np.unique(mix(random.choice(rows, keys.size)))
            found.setdefault("read", []).append(_nanoseconds(partial(table.read, other), other.size))
    best = {name: min(samples[1:]) for name, samples in found.items()}
    per_row = table.nbytes / table.count
    return Figures(
        rule,
        rows,
        dim,
        keys.size,
        bytes_per_row=per_row,
        fill_seconds=seconds,
        longest=1000 * longest,
        **best,
    )


@click.command(context_settings=CONTEXT)
@click.option("--rule", "rules", multiple=True, default=RULES, type=click.Choice(RULES), show_default=True)
@click.option(
    "--rows",
    "sizes",
    multiple=True,
    type=click.IntRange(min=2),
    default=(50_000, 4_000_000),
    show_default=True,
)
@click.option("--dim", type=click.IntRange(min=1), default=16, show_default=True)
@click.option("--repeats", type=click.IntRange(min=1), default=30, show_default=True)
@click.option(
    "--json", "path", type=click.Path(path_type=Path, dir_okay=False), help="Write all figures there."
)
def main(rules: tuple[str, ...], sizes: tuple[int, ...], dim: int, repeats: int, path: Path | None) -> None:
    """Measure what reads and updates of a sparse table take per row, beside probes of random lines of memory."""
    # As servers do.
    keep_large_blocks()
    printed = Printed(title=f"ns per row of {dim} numbers, up to {BATCH:,} rows a call, one thread")
    for heading in (
        "rule",
        "rows",
        "one line",
        "probe",
        "read",
        "update",
        "of the probe",
        "bytes per row",
        "longest fill, ms",
    ):
        printed.add_column(heading, justify="left" if heading == "rule" else "right")
    record: list[dict[str, Any]] = []
    for rows in sizes:
        for rule in rules:
            found = measure(rule, rows, dim, repeats)
            record.append(asdict(found))
            numbers = (found.one_line, found.probe, found.read, found.update)
            printed.add_row(
                rule,
                f"{rows:,}",
                *(f"{number:.0f}" for number in numbers),
                f"{found.update / found.probe:.2f}",
                f"{found.bytes_per_row:.0f}",
                f"{found.longest:.0f}",
            )
    console.print(printed)
    if path is not None:
        path.write_text(json.dumps({"machine": machine_facts(), "rows": record}, indent=1) + "\n", "utf-8")
