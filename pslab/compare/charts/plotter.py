"""The plotter: lines, bars and maps of numbers on matplotlib figures, and figures as files.

matplotlib (in the `examples` extra) is imported only here.
"""

import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from pslab.runs.folder import RunError
from pswire.extras import how_to_install

# Okabe and Ito's palette, which any kind of colour vision can distinguish.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# The most ticks with a name.
NAMED = 16


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def figure_of(
    columns: int, rows: int, *, width: float, height: float, ratios: Sequence[float] | None = None
) -> tuple[Any, Any]:
    """Return a figure of `width` x `height` inches and its axes [rows, columns]. Raises RunError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RunError(f"the charts need matplotlib: {how_to_install('examples')}") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, height_ratios=ratios)


def lines(axes: Any, x: Any, y: Any, *, label: str, paint: str, deviation: Any = None) -> None:
    """Draw y over x, in a band of ± `deviation` if it is given."""
    axes.plot(x, y, color=paint, label=label, linewidth=1.8)
    if deviation is not None:
        axes.fill_between(x, y - deviation, y + deviation, color=paint, alpha=0.2, linewidth=0)


def theory(axes: Any, x: Any, y: Any, *, label: str, paint: str) -> None:
    """Draw what a formula says: always dashed."""
    axes.plot(x, y, color=paint, label=label or "_", linestyle="--", linewidth=2, alpha=0.6)


def bars(axes: Any, table: pd.DataFrame) -> None:
    """Draw a bar for each cell: a place for each row, a colour for each column. Missing numbers have no bar."""
    width = 0.8 / max(1, len(table.columns))
    for index, (label, heights) in enumerate(table.items()):
        places = np.arange(len(table)) + (index - (len(table.columns) - 1) / 2) * width
        axes.bar(places, heights.fillna(0.0), width * 0.92, color=colour(index), label=label)
    name_ticks(axes.set_xticks, range(len(table)), table.index)


def name_ticks(set_ticks: Any, places: Sequence[float], names: Sequence[str]) -> None:
    """Name all places, or an even selection of many."""
    every = math.ceil(len(names) / NAMED) or 1
    set_ticks(list(places)[::every], list(names)[::every])


def heat(figure: Any, axes: Any, table: pd.DataFrame, *, label: str, **look: Any) -> None:
    """Map a table: a field for each cell, blank where it has no number."""
    picture = axes.imshow(table, aspect="auto", interpolation="none", **look)
    figure.colorbar(picture, ax=axes, label=label)
    name_ticks(axes.set_xticks, range(len(table.columns)), table.columns)
    name_ticks(axes.set_yticks, range(len(table)), table.index)


def dress(axes: Any, x: str, y: str, *, grid: bool = True) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if grid:
        axes.grid(axis="y", color="#e3e3e3", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def legend(figure: Any, panels: Sequence[Any], order: Sequence[str] = (), columns: int = 3) -> None:
    """Draw a legend with each label once: those of `order` first, in that order."""
    handles: dict[str, Any] = dict.fromkeys(order)
    for axes in panels:
        handles |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    shown = {label: handle for label, handle in handles.items() if handle is not None}
    if shown:
        place = {"loc": "outside lower left", "ncols": columns, "frameon": False}
        figure.legend(list(shown.values()), list(shown), **place)


def svg(figure: Any) -> str:
    """Return the figure as SVG. Text stays text; the same figure gives the same bytes."""
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "paramserver", "font.size": 9}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def png(figure: Any) -> bytes:
    """Return the figure as PNG of 100 dots per inch. 48 colours suffice, and need a third of the bytes."""
    from PIL import Image

    drawn, out = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=100, metadata={"Software": None})
    Image.open(drawn).convert("RGB").quantize(48).save(out, format="png", optimize=True)
    return out.getvalue()
