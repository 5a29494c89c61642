"""Charts as matplotlib figures, and figures as files. matplotlib (in the `examples` extra) is imported only here."""

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslab.compare.groups import Group
from pslab.runs.folder import Run, RunError
from pslab.runs.labels import policy_label, worker_order
from pswire.decisions.entries import Note, Policy
from pswire.extras import how_to_install

# Okabe and Ito's palette, which any kind of colour vision can distinguish.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# The most workers of a chart that are named.
NAMED = 16
# The most characters of a note in a chart.
LONGEST_NOTE = 40

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Curve:
    """Training loss of every version that has a finite one. `seconds` from the first grant."""

    seconds: Array
    versions: Array
    samples: Array
    loss: Array


def curve(run: Run) -> Curve:
    begun = run.began or 0.0
    points = [
        (metric.t - begun, metric.version, metric.samples, metric.loss)
        for metric in run.metrics()
        if metric.kind == "train"
    ]
    table = np.array(points, dtype=np.float64).reshape(-1, 4)
    table = table[np.isfinite(table).all(axis=1)]
    return Curve(*(table[:, column] for column in range(4)))


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def loss_chart(groups: Sequence[Group]) -> Any:
    """Training loss against time, versions and samples; one faint line per run, one strong one per group.

    Notes and changes of policy in each group's first run stand beside its time.
    """
    figure, (axes,) = figure_of(3, 1, width=12, height=4.2)
    # The lowest and the highest value of each curve.
    drawn: list[float] = []
    for index, group in enumerate(groups):
        _notes(axes[0], group.runs[0].run, colour(index))
        curves = [found for run in group.runs if len((found := curve(run.run)).loss)]
        if not curves:
            axes[0].plot([], [], color=colour(index), label=f"{group.label} (no loss recorded)")
        for number, found in enumerate(curves):
            smooth = smoothed(found.loss)
            drawn += [float(smooth.min()), float(smooth.max())]
            _loss(axes, found, colour(index), group.label if number == 0 else "", strong=number == 0)
    titles = ("seconds since the first grant", "versions", "samples of applied contributions")
    for place, title in zip(axes, titles, strict=True):
        dress(place, title, "training loss" if place is axes[0] else "")
        place.locator_params(axis="x", nbins=6)
        # A linear axis hides the rest of a loss that falls far; a logarithmic one has no numbers within a decade.
        if drawn and 0 < 10 * min(drawn) <= max(drawn):
            place.set_yscale("log")
            place.yaxis.set_major_formatter("{x:g}")
    _legend(figure, axes[0])
    return figure


def _notes(axes: Any, run: Run, colour: str) -> None:
    """Mark each note of an operator, and each change of the policy, by a line with its text."""
    began = run.began or 0.0
    for entry in run.decisions():
        if isinstance(entry.fact, Note | Policy):
            at = entry.t - began
            axes.axvline(at, color=colour, linestyle=":", linewidth=1)
            place = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "xytext": (3, 0)}
            whole = entry.fact.text if isinstance(entry.fact, Note) else policy_label(entry.fact.policy)
            text = whole if len(whole) <= LONGEST_NOTE else f"{whole[:LONGEST_NOTE]}..."
            axes.annotate(text, (at, 0.02), rotation=90, fontsize=7, color=colour, **place)


# Points of a band.
POINTS = 200


def band_chart(groups: Sequence[Group]) -> Any:
    """Training loss against time and versions: the mean over a group's runs, in a band of ± one standard deviation.

    A curve ends where the first of its runs does.
    """
    figure, ((left, right),) = figure_of(2, 1, width=12, height=4.2)
    for place, axis, title in (
        (left, "seconds", "seconds since the first grant"),
        (right, "versions", "versions"),
    ):
        for index, group in enumerate(groups):
            curves = [found for run in group.runs if len((found := curve(run.run)).loss)]
            if not curves:
                continue
            ends = [getattr(found, axis)[-1] for found in curves]
            begins = [getattr(found, axis)[0] for found in curves]
            x = np.linspace(max(begins), min(ends), POINTS)
            y = np.array([np.interp(x, getattr(found, axis), smoothed(found.loss)) for found in curves])
            mean, deviation = y.mean(axis=0), y.std(axis=0, ddof=1) if len(y) > 1 else np.zeros(POINTS)
            place.plot(x, mean, color=colour(index), linewidth=1.8, label=group.label)
            place.fill_between(
                x, mean - deviation, mean + deviation, color=colour(index), alpha=0.2, linewidth=0
            )
        dress(place, title, "training loss" if place is left else "")
    _legend(figure, left, columns=2)
    return figure


def _loss(axes: Any, found: Curve, paint: str, label: str, *, strong: bool) -> None:
    smooth = smoothed(found.loss)
    look = {"color": paint, "linewidth": 1.8 if strong else 0.8, "alpha": 1.0 if strong else 0.45}
    for place, x in zip(axes, (found.seconds, found.versions, found.samples), strict=True):
        place.plot(x, smooth, label=label or "_", **look)


def smoothed(values: Array) -> Array:
    """Return the exponential moving average over about a thirtieth of the series, without bias at its start."""
    span = max(1.0, len(values) / 30)
    keep = 1 - 1 / span
    out = np.empty_like(values)
    total = weight = 0.0
    for index, value in enumerate(values):
        total = keep * total + value
        weight = keep * weight + 1
        out[index] = total / weight
    return out


def share_chart(groups: Sequence[Group]) -> Any:
    """Draw each worker's part of the applied contributions; the line is an equal part."""
    figure, ((axes,),) = figure_of(1, 1, width=12, height=3.2)
    width = 0.8 / max(1, len(groups))
    workers = sorted({worker for group in groups for worker in group.shares()}, key=worker_order)
    for index, group in enumerate(groups):
        shares = group.shares()
        heights = [100 * shares[worker].mean if worker in shares else 0.0 for worker in workers]
        places = np.arange(len(workers)) + (index - (len(groups) - 1) / 2) * width
        axes.bar(places, heights, width * 0.92, color=colour(index), label=group.label)
    axes.axhline(100 / max(1, len(workers)), color="#555555", linewidth=1, linestyle="--")
    named = _named(workers)
    axes.set_xticks(named, [workers[place] for place in named])
    dress(axes, "", "share of what was applied, %")
    _legend(figure, axes)
    return figure


def figure_of(
    columns: int,
    rows: int,
    *,
    width: float,
    height: float,
    share: bool = False,
    ratios: Sequence[float] | None = None,
) -> tuple[Any, Any]:
    """Return a figure of `width` x `height` inches and its axes [rows, columns]. Raises RunError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RunError(f"the charts need matplotlib: {how_to_install('examples')}") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharex=share, sharey=share, height_ratios=ratios)
    return figure, axes


def _legend(figure: Any, axes: Any, columns: int = 3) -> None:
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=columns, frameon=False)


def dress(axes: Any, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(axis="y", color="#e3e3e3", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


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


# The most rows of a map of staleness, where many workers share rows, and its most columns.
ROWS, COLUMNS = 200, 60


def _named(workers: Sequence[str]) -> range:
    """Return the places of the workers that are named: all, or an even selection of many."""
    return range(0, len(workers), math.ceil(len(workers) / NAMED) or 1)


def staleness_chart(groups: Sequence[Group]) -> Any:
    """Draw a map of staleness: a panel per group, of its first run; a row per worker.

    The darker a cell, the larger its part of the worker's contributions. Raises RunError without matplotlib.
    """
    figure, table = figure_of(1, len(groups), width=12, height=3.6 * len(groups))
    for group, (axes,) in zip(groups, table, strict=True):
        _map(figure, axes, group.runs[0].run.summary.staleness)
        if len(groups) > 1:
            axes.set_title(group.label, loc="left", fontsize=10)
    return figure


def _map(figure: Any, axes: Any, workers: Mapping[str, Mapping[int, int]]) -> None:
    names = sorted(workers, key=worker_order)
    found = {tau for counts in workers.values() for tau in counts}
    if len(found) < 2:
        # A map of one colour shows nothing.
        text = f"all had staleness {found.pop()}" if found else "nothing was applied"
        axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    parts, width = histograms([workers[name] for name in names])
    picture = axes.imshow(
        100 * parts,
        aspect="auto",
        cmap="Blues",
        vmin=0,
        interpolation="none",
        extent=(-0.5, width * parts.shape[1] - 0.5, len(names), 0),
    )
    figure.colorbar(picture, ax=axes, label="share %")
    named = _named(names)
    axes.set_yticks([place + 0.5 for place in named], [names[place] for place in named])
    dress(axes, "staleness", "")
    axes.grid(visible=False)


def histograms(workers: Sequence[Mapping[int, int]]) -> tuple[Array, int]:
    """Return shares [at most ROWS, at most COLUMNS] from each worker's counts by staleness, and a column's width.

    If there are many workers, neighbours share a row, which has the mean of their shares. Workers without
    contributions count as zeros.
    """
    highest = max((tau for counts in workers for tau in counts), default=0)
    width = math.ceil((highest + 1) / COLUMNS)
    parts = np.zeros((len(workers), highest // width + 1))
    for row, counts in zip(parts, workers, strict=True):
        for tau, count in counts.items():
            row[tau // width] += count / sum(counts.values())
    blocks = np.array_split(parts, min(ROWS, len(workers)))
    return np.array([block.mean(axis=0) for block in blocks]), width
