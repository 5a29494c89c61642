"""What was measured, as tables for a terminal."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from statistics import quantiles

from rich.console import Console
from rich.table import Table

from benchmarks.facts import machine_facts
from benchmarks.kinds import LABELS, OURS, OVER_TLS, TF
from benchmarks.peers.child import ROOT
from benchmarks.rounds import Row
from benchmarks.samples import Samples

# A table in a log file needs no line breaks for the sake of a terminal.
console = Console(width=None if sys.stdout.isatty() else 140)


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A moving line on a terminal, plain lines elsewhere; with the seconds since the block began."""
    begin = time.monotonic()

    def timed(text: str) -> str:
        return f"{time.monotonic() - begin:4.0f} s  {text}"

    if not console.is_terminal:
        yield lambda text: console.print(timed(text), soft_wrap=True, highlight=False)
        return
    with console.status("starting") as status:
        yield lambda text: status.update(timed(text))


def folder_of(section: str, out: Path | None) -> Path:
    """The folder of a run's results, made if it is missing: `out`, or runs/SECTION-TIME."""
    folder = out or ROOT / "runs" / f"{section}-{datetime.now():%Y%m%d-%H%M%S}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_results(folder: Path, **found: object) -> Path:
    """Write what was found and where it was measured to `results.json`."""
    path = folder / "results.json"
    record = {"machine": machine_facts(), **found}
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return path


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def plain(samples: Samples) -> str:
    """``1234 ±3%``: median and half the interquartile range."""
    return f"{number(samples.median)} ±{samples.spread:.0%}"


def headed(title: str, *columns: str, left: int = 1) -> Table:
    """An empty table; the first `left` columns are aligned to the left."""
    made = Table(title=title, title_justify="left", header_style="bold")
    for index, column in enumerate(columns):
        made.add_column(column, justify="left" if index < left else "right")
    return made


def ratios(title: str, rows: Sequence[Row]) -> Table:
    """Steps per second of every peer, and its multiple of TensorFlow's."""
    names = [name for name in LABELS if any(name in row.bursts for row in rows)]
    labels = [LABELS[name] for name in names]
    made = headed(f"{title}: steps/s (all workers), multiple of {LABELS[TF]}", "load", *labels)
    made.show_lines = True
    for row in rows:
        made.add_row(row.load.name, *(_cell(row, name) for name in names))
    return made


def _cell(row: Row, name: str) -> str:
    if name not in row.bursts:
        return "-"
    rate = plain(row.rate(name))
    if name == TF or TF not in row.bursts:
        return rate
    return f"{rate}\n{number(row.ratio(name, TF).median)}x"


def encrypted(rows: Sequence[Row]) -> Table | None:
    """How many times as long a step takes over TLS, round by round, and what it takes of CPU of all ends together.

    None without a pair.
    """
    made = headed(
        "TLS against plain: time of a step",
        *("load", "over", "times as long", "quartiles", "CPU ms", "TLS CPU ms"),
        left=2,
    )
    plain_of = {name: next(own for own, how in OURS.items() if how == OVER_TLS[name]) for name in OVER_TLS}
    for row in rows:
        for name, bare in plain_of.items():
            if name in row.bursts and bare in row.bursts:
                spent = [number(_processor_ms(row, peer)) for peer in (bare, name)]
                made.add_row(row.load.name, LABELS[bare], *_quartiles(row.ratio(bare, name)), *spent)
    return made if made.rows else None


def _processor_ms(row: Row, name: str) -> float:
    """Milliseconds of CPU for a step, of servers and workers, over all rounds: systems count in ticks."""
    bursts = row.bursts[name]
    return 1e3 * sum(b.server_cpu + b.worker_cpu for b in bursts) / sum(b.steps for b in bursts)


def checkouts(rows: Sequence[tuple[str, str, Row]]) -> Table:
    """Steps per second here and there (the names of the peers); the ratio is taken round by round."""
    made = headed(
        "this checkout against the other: steps/s",
        *("load", "peer", "here", "there", "ratio of rounds", "quartiles"),
        left=2,
    )
    for here, there, row in rows:
        cells = (plain(row.rate(here)), plain(row.rate(there)), *_quartiles(row.ratio(here, there)))
        made.add_row(row.load.name, LABELS[here], *cells)
    return made


def _quartiles(ratio: Samples) -> tuple[str, str]:
    low, _, high = quantiles(ratio.values, n=4) if len(ratio.values) > 1 else [ratio.median] * 3
    return f"{ratio.median:.3f}", f"{low:.2f} - {high:.2f}"
