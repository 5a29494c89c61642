"""The section `optimizers`: kernels.py in front of a reader."""

from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from benchmarks import kernels
from benchmarks.rounds import Mode, Progress
from benchmarks.tables import number, plain

# The share of the triad limit that was aimed at, for Adam.
TARGET = 0.7

SHORT_NAMES = ("sgd", "adam", kernels.FOLD)


def optimizers(mode: Mode, logs: Path, say: Progress) -> list[kernels.Row]:
    """Measure; the short mode leaves rules out that differ in little from their neighbours."""
    names = SHORT_NAMES if mode.name == "short" else kernels.NAMES
    return kernels.measure(
        names, repetitions=mode.rounds, seconds=mode.seconds / 4, logs=logs, tell=lambda line: say(line)
    )


def table(rows: list[kernels.Row]) -> Table:
    """GB/s of ours, and what that is against the triad limit, numpy and Keras on this CPU."""
    shown = Table(
        title=f"Updates of {rows[0].elements / 2**20:g}M floats", title_justify="left", header_style="bold"
    )
    headings = ("pass", "threads", "triad GB/s", "ours GB/s", "of the triad", "times numpy", "times Keras")
    for index, heading in enumerate(headings):
        shown.add_column(heading, justify="right" if index else "left")
    for row in rows:
        shown.add_row(
            row.name,
            str(row.threads),
            plain(row.triad),
            plain(row.fused),
            _share(row),
            number(row.fused.per(row.numpy).median),
            number(row.fused.per(row.keras).median) if row.keras else "-",
        )
    return shown


def _share(row: kernels.Row) -> Text:
    share = row.of_triad.median
    if row.name != "adam":
        return Text(f"{share:.2f}")
    return Text(f"{share:.2f} (aim {TARGET})", style="green" if share >= TARGET else "red")


def as_json(rows: list[kernels.Row]) -> list[dict[str, Any]]:
    return [row.as_json() for row in rows]
