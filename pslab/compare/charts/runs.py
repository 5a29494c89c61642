"""Charts of what happened in runs: training loss, staleness, shares of workers."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from pslab.compare.charts.plotter import bars, colour, dress, figure_of, heat, legend, lines
from pslab.compare.groups import RunGroup
from pslab.runs.folder import Run
from pslab.runs.labels import policy_label, worker_order
from psserver.decisions.entries import Note, Policy

# Over what a loss is drawn -> the title of that axis.
AXES = {
    "seconds": "seconds since the first grant",
    "versions": "versions",
    "samples": "samples of applied contributions",
}
# Points of a band.
POINTS = 200
# The most characters of a note in a chart.
LONGEST_NOTE = 40
# The most rows of a map of staleness, where many workers share rows, and its most columns.
ROWS, COLUMNS = 200, 60


def curve(run: Run) -> pd.DataFrame:
    """Return the training loss of every version that has a finite one, smoothed, by the names of AXES."""
    rows = [(m.t, m.version, m.samples, m.loss) for m in run.metrics() if m.kind == "train"]
    table = pd.DataFrame(rows, columns=[*AXES, "loss"], dtype=float)
    table = table[np.isfinite(table).all(axis=1)]
    return table.assign(seconds=table.seconds - (run.began or 0.0), loss=smoothed(table.loss))


def smoothed(values: pd.Series) -> pd.Series:
    """Return the exponential moving average over about a thirtieth of the series, without bias at its start."""
    return values.ewm(alpha=min(1.0, 30 / max(1, len(values)))).mean()


def loss_chart(groups: Sequence[RunGroup]) -> Any:
    """Training loss against time, versions and samples: the mean over a group's runs, ± one standard deviation.

    Notes and changes of policy in each group's first run stand beside its time.
    """
    figure, (panels,) = figure_of(3, 1, width=12, height=4.2)
    # The mean losses.
    drawn = []
    for index, group in enumerate(groups):
        paint, curves = colour(index), [found for each in group.runs if len(found := curve(each.run))]
        _notes(panels[0], group.runs[0].run, paint)
        if not curves:
            panels[0].plot([], [], color=paint, label=f"{group.label} (no loss recorded)")
        for place, axis in zip(panels, AXES if curves else (), strict=False):
            x, mean, deviation = _together(curves, axis)
            lines(place, x, mean, label=group.label, paint=paint, deviation=deviation)
            drawn.append(mean)
    least, most = pd.concat(drawn).agg(["min", "max"]) if drawn else (0.0, 0.0)
    for place, title in zip(panels, AXES.values(), strict=True):
        dress(place, title, "training loss" if place is panels[0] else "")
        place.locator_params(axis="x", nbins=6)
        # A linear axis hides the rest of a loss that falls far; a logarithmic one has no numbers within a decade.
        if 0 < 10 * least <= most:
            place.set_yscale("log")
            place.yaxis.set_major_formatter("{x:g}")
    legend(figure, panels[:1])
    return figure


def _together(curves: Sequence[pd.DataFrame], axis: str) -> tuple[Any, pd.Series, pd.Series | None]:
    """Return x, mean and deviation of curves, as far as all of them go; no deviation for a single one."""
    if len(curves) == 1:
        return curves[0][axis], curves[0].loss, None
    ends = max(each[axis].iloc[0] for each in curves), min(each[axis].iloc[-1] for each in curves)
    x = np.linspace(*ends, POINTS)
    y = pd.DataFrame([np.interp(x, each[axis], each.loss) for each in curves])
    return x, y.mean(), y.std()


def _notes(axes: Any, run: Run, paint: str) -> None:
    """Mark each note of an operator, and each change of the policy, by a line with its text."""
    began = run.began or 0.0
    for entry in run.decisions():
        if isinstance(entry.fact, Note | Policy):
            at = entry.t - began
            axes.axvline(at, color=paint, linestyle=":", linewidth=1)
            place = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "xytext": (3, 0)}
            whole = entry.fact.text if isinstance(entry.fact, Note) else policy_label(entry.fact.policy)
            text = whole if len(whole) <= LONGEST_NOTE else f"{whole[:LONGEST_NOTE]}..."
            axes.annotate(text, (at, 0.02), rotation=90, fontsize=7, color=paint, **place)


def share_chart(groups: Sequence[RunGroup]) -> Any:
    """Draw each worker's part of the applied contributions; the line is an equal part."""
    figure, ((axes,),) = figure_of(1, 1, width=12, height=3.2)
    columns = [pd.Series({worker: each.mean for worker, each in g.shares().items()}) for g in groups]
    table = 100 * pd.concat(columns, axis=1, keys=[group.label for group in groups])
    table = table.loc[sorted(table.index, key=worker_order)]
    bars(axes, table)
    axes.axhline(100 / max(1, len(table)), color="#555555", linewidth=1, linestyle="--")
    dress(axes, "", "share of what was applied, %")
    legend(figure, [axes])
    return figure


def staleness_chart(groups: Sequence[RunGroup]) -> Any:
    """Draw a map of staleness: a panel per group, of its first run; a row per worker.

    The darker a field, the larger its part of the worker's contributions. Raises RunError without matplotlib.
    """
    figure, panels = figure_of(1, len(groups), width=12, height=3.6 * len(groups))
    for group, (axes,) in zip(groups, panels, strict=True):
        _map(figure, axes, group.runs[0].run.summary.staleness)
        if len(groups) > 1:
            axes.set_title(group.label, loc="left", fontsize=10)
    return figure


def _map(figure: Any, axes: Any, workers: Mapping[str, Mapping[int, int]]) -> None:
    found = {tau for counts in workers.values() for tau in counts}
    if len(found) < 2:
        # A map of one colour shows nothing.
        text = f"all had staleness {found.pop()}" if found else "nothing was applied"
        axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    heat(figure, axes, 100 * histograms(workers), label="share %", cmap="Blues", vmin=0)
    dress(axes, "staleness", "", grid=False)


def histograms(workers: Mapping[str, Mapping[int, int]]) -> pd.DataFrame:
    """Return shares from each worker's counts by staleness: at most ROWS rows, at most COLUMNS ranges by their begin.

    Of many workers, neighbours share a row, which has the mean of their shares and the name of the first. Workers
    without contributions count as zeros.
    """
    names = sorted(workers, key=worker_order)
    counts = pd.DataFrame({name: pd.Series(workers[name], dtype=float) for name in names})
    highest = int(counts.index.max()) if len(counts) else 0
    width = math.ceil((highest + 1) / COLUMNS)
    ranges = counts.groupby(lambda tau: tau // width * width).sum().reindex(range(0, highest + 1, width))
    shares = (ranges / ranges.sum()).fillna(0.0).T
    rows = np.arange(len(names)) * min(ROWS, len(names)) // len(names)
    return shares.groupby(rows).mean().set_axis(shares.index[~pd.Series(rows).duplicated()])
