"""A picture of one or several runs: loss over time, and how stale the applied contributions were.

matplotlib (in the `examples` extra) is imported only here, and draws without a display.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pslab.compare.timeline import curve
from pslab.runs.folder import Run, RunError
from pslab.runs.table import labels
from pswire.decisions.entries import Note

# Okabe and Ito's palette: told apart with any kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# Staleness from here on shares one bar.
TAIL = 12
# Characters of a note in the picture.
LONGEST_NOTE = 40

Series = npt.NDArray[np.float64]


def draw(runs: Sequence[Run], path: Path, title: str = "") -> None:
    """Write a picture in the format of the name's ending.

    Raises RunError for an ending without a format, a run that cannot be read, a
    file that cannot be written, or when matplotlib is missing.
    """
    if not runs:
        raise RunError("a report needs at least one run")
    figure = _figure()
    if path.suffix[1:].lower() not in figure.canvas.get_supported_filetypes():
        raise RunError(f"{path}: expected a name that ends in .png, .svg or .pdf")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    names = labels(runs)
    _loss(left, runs, names)
    _staleness(right, runs, names)
    figure.suptitle(title or _title(runs), x=0.01, ha="left", fontsize=13, fontweight="bold")
    handles, texts = left.get_legend_handles_labels()
    figure.legend(handles, texts, loc="outside lower left", ncols=min(len(texts), 4), frameon=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror}") from error


def _figure() -> Any:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RunError("the picture needs matplotlib: pip install 'paramserver[examples]'") from error
    figure = Figure(figsize=(11, 4.6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _title(runs: Sequence[Run]) -> str:
    first = runs[0].summary
    return f"{first.servers} servers, {first.workers} workers, {first.optimizer.get('name', 'optimizer')}"


def _dress(axes: Any, title: str, x: str, y: str) -> None:
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _loss(axes: Any, runs: Sequence[Run], names: Sequence[str]) -> None:
    _dress(axes, "Training loss", "seconds since the first grant", "loss of the applied contributions")
    spread: list[float] = []
    for run, name, colour in zip(runs, names, _colours(len(runs)), strict=True):
        _draw_notes(axes, run, colour)
        found = curve(run)
        if not len(found.loss):
            axes.plot([], [], color=colour, label=f"{name} (no loss recorded)")
            continue
        smooth = smoothed(found.loss)
        spread += [float(smooth.min()), float(smooth.max())]
        axes.plot(found.seconds, found.loss, color=colour, alpha=0.18, linewidth=0.8)
        axes.plot(found.seconds, smooth, color=colour, linewidth=2, label=name)
    # A linear axis hides everything after the first second when the loss falls far.
    if spread and min(spread) > 0 and max(spread) / min(spread) > 8:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_ylabel("loss of the applied contributions (log scale)")


def _draw_notes(axes: Any, run: Run, colour: str) -> None:
    """Mark operators' remarks by a line each, with the text along it."""
    began = run.began or 0.0
    for entry in run.decisions():
        if isinstance(entry.fact, Note):
            at = entry.t - began
            axes.axvline(at, color=colour, linestyle=":", linewidth=1)
            place = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "xytext": (3, 0)}
            said = (
                entry.fact.text
                if len(entry.fact.text) <= LONGEST_NOTE
                else f"{entry.fact.text[:LONGEST_NOTE]}..."
            )
            axes.annotate(said, (at, 0.02), rotation=90, fontsize=7, color=colour, **place)


def smoothed(values: Series) -> Series:
    """Exponential moving average over about a thirtieth of the series, without a bias to its start."""
    span = max(1.0, len(values) / 30)
    keep = 1 - 1 / span
    out = np.empty_like(values)
    total = weight = 0.0
    for index, value in enumerate(values):
        total = keep * total + value
        weight = keep * weight + 1
        out[index] = total / weight
    return out


def _staleness(axes: Any, runs: Sequence[Run], names: Sequence[str]) -> None:
    _dress(axes, "Staleness", "versions made since the gradient's base", "share of applied contributions, %")
    highest, width = 0, 0.8 / len(runs)
    for index, (run, name, colour) in enumerate(zip(runs, names, _colours(len(runs)), strict=True)):
        histogram = binned(run.summary.histogram)
        total = histogram.total() or 1
        highest = max(highest, *histogram, 0)
        offset = (index - (len(runs) - 1) / 2) * width
        bins = sorted(histogram)
        shares = [100 * histogram[tau] / total for tau in bins]
        axes.bar([tau + offset for tau in bins], shares, width=width * 0.92, color=colour, label=name)
    axes.set_xlim(-0.6, max(highest, 1) + 0.6)
    axes.set_ylim(0, 103)
    ticks = range(max(highest, 1) + 1)
    axes.set_xticks(list(ticks), [f"{tau}+" if tau == TAIL else str(tau) for tau in ticks])


def binned(histogram: Counter[int]) -> Counter[int]:
    """Counts by staleness, all from TAIL on in one bin."""
    bins: Counter[int] = Counter()
    for tau, count in histogram.items():
        bins[min(tau, TAIL)] += count
    return bins


def _colours(count: int) -> list[str]:
    return [COLOURS[index % len(COLOURS)] for index in range(count)]
