"""Multiples of TensorFlow's rate as a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.kinds import LABELS, TF
from benchmarks.measures.rounds import Row
from benchmarks.measures.samples import Samples
from pslab.runs.report import COLOURS

# The same colour for the same peer in every picture; TensorFlow is the line at one.
COLOUR = dict(zip((name for name in LABELS if name != TF), COLOURS, strict=False))


def draw(sections: Mapping[str, Sequence[Row]], path: Path, title: str) -> bool:
    """Write a PNG of all sections that have TensorFlow in them; False when there is none."""
    shown = {name: rows for name, rows in sections.items() if any(TF in row.bursts for row in rows)}
    if not shown:
        return False
    widths = [len(rows) + 1 for rows in shown.values()]
    figure = Figure(figsize=(1.5 * sum(widths), 5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(shown), width_ratios=widths, squeeze=False)[0]
    handles: dict[str, Any] = {}
    for axes, (name, rows) in zip(panels, shown.items(), strict=True):
        _panel(axes, name, [row for row in rows if TF in row.bursts], handles)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    figure.legend(handles.values(), handles, loc="outside lower left", ncols=len(handles), frameon=False)
    figure.savefig(path)
    return True


def _panel(axes: Any, name: str, rows: Sequence[Row], handles: dict[str, Any]) -> None:
    """A group of bars per load, up or down from one; a line from the least to the largest sample."""
    peers = [peer for peer in COLOUR if any(peer in row.bursts for row in rows)]
    width = 0.8 / max(len(peers), 1)
    for index, peer in enumerate(peers):
        for at, row in enumerate(rows):
            if peer in row.bursts:
                x = at + (index - (len(peers) - 1) / 2) * width
                bar = _bar(axes, x, width, row.rate(peer).per(row.rate(TF)), COLOUR[peer])
                handles.setdefault(LABELS[peer], bar)
    axes.axhline(1, color="black", linewidth=1)
    axes.set_title(name, loc="left", fontsize=11)
    axes.set_ylabel(f"steps/s as a multiple of {LABELS[TF]}")
    # A tenth and ten times are equally far from one.
    axes.set_yscale("log")
    axes.margins(y=0.12)
    axes.yaxis.set_major_formatter("{x:g}x")
    axes.set_xticks(range(len(rows)), [row.load.name.replace(", ", ",\n") for row in rows], fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)


def _bar(axes: Any, x: float, width: float, ratio: Samples, colour: str) -> Any:
    low, high = min(ratio.values), max(ratio.values)
    middle = ratio.median
    error = [[middle - low], [high - middle]]
    bar = axes.bar(x, middle - 1, width * 0.92, bottom=1, color=colour)
    axes.errorbar(x, middle, yerr=error, color="#444444", linewidth=1, capsize=2)
    text = f"{middle:.1f}x" if middle < 10 else f"{middle:.0f}x"
    above = middle >= 1
    axes.annotate(
        text,
        (x, high if above else low),
        xytext=(0, 2 if above else -3),
        textcoords="offset points",
        ha="center",
        va="bottom" if above else "top",
        fontsize=8,
    )
    return bar
