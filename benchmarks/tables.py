"""What was measured, as tables for a terminal."""

from collections.abc import Iterable, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from benchmarks.limits import MEANING
from benchmarks.loads import ALONE, MB, TF
from benchmarks.rounds import Row
from benchmarks.samples import Samples, collected
from benchmarks.shares import share
from benchmarks.stage import LABELS

# From this size on it is bandwidth that counts, and a share of it means something.
LARGE = 10 * MB


def plain(samples: Samples) -> str:
    """``1234 ±3%``: median and half the interquartile range."""
    return f"{number(samples.median)} ±{samples.spread:.0%}"


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def ratios(title: str, rows: Sequence[Row]) -> Table:
    """Steps per second of every peer, and its multiple of TensorFlow's; with the target where there is one."""
    names = [name for name in LABELS if any(name in row.bursts for row in rows)]
    table = Table(
        title=f"{title}: steps/s (all workers), multiple of {LABELS[TF]}",
        title_justify="left",
        header_style="bold",
        show_lines=True,
    )
    table.add_column("load")
    for name in names:
        table.add_column(LABELS[name], justify="right")
    for row in rows:
        table.add_row(row.load.name, *(_cell(row, name) for name in names))
    return table


def _cell(row: Row, name: str) -> Text:
    if name not in row.bursts:
        return Text("-")
    text = Text(plain(row.rate(name)))
    if name != TF and TF in row.bursts:
        text.append("\n")
        text.append(_ratio(row, name))
    reached = share(row, name)
    if reached is not None and row.load.nbytes >= LARGE:
        text.append(f"\n{reached.median:.2f} of the limit", style="dim")
    return text


def _ratio(row: Row, name: str) -> Text:
    ratio = row.rate(name).per(row.rate(TF))
    target = row.load.targets.get(name)
    if target is None or name == ALONE:
        return Text(f"{number(ratio.median)}x")
    reached = ratio.median >= target
    return Text(f"{number(ratio.median)}x (aim {target:g}x)", style="green" if reached else "red")


def limits(samples: Mapping[str, Sequence[float]]) -> Table:
    """The machine's limits over the whole run."""
    table = Table(title="Raw limits of this machine", title_justify="left", header_style="bold")
    table.add_column("limit")
    table.add_column("median", justify="right")
    for name, meaning in MEANING.items():
        table.add_row(meaning, plain(collected(samples[name])))
    return table


def scaling(title: str, rows: Iterable[Row]) -> Table:
    """Steps/s and parallel efficiency by number of workers and servers."""
    table = Table(title=title, title_justify="left", header_style="bold")
    headings = ("workers", "servers", "over", "steps/s", "GB/s", "efficiency", "server CPU s/GB")
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="left" if index == 2 else "right")
    single: dict[tuple[int, str], float] = {}
    for row in rows:
        for name, bursts in row.bursts.items():
            load, rate = row.load, row.rate(name)
            per_worker = rate.median / load.workers
            # One worker's own rate, with as many servers and over the same transport.
            alone = single.setdefault((load.servers, name), per_worker)
            moved = 2 * load.nbytes * sum(burst.steps for burst in bursts) / 1e9
            table.add_row(
                str(load.workers),
                str(load.servers),
                LABELS[name],
                plain(rate),
                number(row.moved(name).median),
                f"{per_worker / alone:.0%}",
                number(sum(burst.server_cpu for burst in bursts) / moved),
            )
    return table
