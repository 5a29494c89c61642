"""Charts of single workers, for runs with more workers than a page has room for: the same facts, drawn densely."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslab.compare.charts import figures as charts
from pslab.compare.groups import Group
from pslab.runs.table import worker_order

# The most workers for which a panel or a group of bars each can be read.
MANY = 16
# Rows of a map of staleness, each of which stands for neighbouring workers, and its columns.
ROWS, COLUMNS = 200, 60

Parts = NDArray[np.float64]


def staleness(groups: Sequence[Group]) -> Any:
    """A histogram for each worker while there is room for them, else a map."""
    return staleness_map(groups) if _most(groups) > MANY else charts.staleness_chart(groups)


def shares(groups: Sequence[Group]) -> Any:
    """A bar for each worker while there is room for them, else a curve."""
    return share_curves(groups) if _most(groups) > MANY else charts.share_chart(groups)


def _most(groups: Sequence[Group]) -> int:
    return max(len(group.runs[0].run.summary.staleness) for group in groups)


def staleness_map(groups: Sequence[Group]) -> Any:
    """How stale the applied contributions of each worker were: a panel per group, its first run; a row per worker.

    The darker, the larger the part of a worker's contributions. Raises RunError without matplotlib.
    """
    figure, table = charts.figure_of(1, len(groups), width=12, height=3.6 * len(groups))
    for group, (axes,) in zip(groups, table, strict=True):
        _map(figure, axes, group.runs[0].run.summary.staleness)
        if len(groups) > 1:
            axes.set_title(group.label, loc="left", fontsize=10)
    return figure


def _map(figure: Any, axes: Any, workers: Mapping[str, Mapping[int, int]]) -> None:
    names = sorted(workers, key=worker_order)
    found = {tau for counts in workers.values() for tau in counts}
    if len(found) < 2:
        # A map of one colour says nothing.
        said = f"all had staleness {found.pop()}" if found else "nothing was applied"
        axes.text(0.5, 0.5, said, ha="center", va="center", transform=axes.transAxes)
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
    places = np.linspace(0, len(names) - 1, 6).astype(int)
    axes.set_yticks(places + 0.5, [names[place] for place in places])
    charts.dress(axes, "staleness", "")
    axes.grid(visible=False)


def histograms(workers: Sequence[Mapping[int, int]]) -> tuple[Parts, int]:
    """From each worker's counts by staleness to shares [at most ROWS, at most COLUMNS], and a column's width.

    Neighbouring workers share a row when they are many, which then has the mean of their shares; workers
    without contributions count as zeros.
    """
    highest = max((tau for counts in workers for tau in counts), default=0)
    width = math.ceil((highest + 1) / COLUMNS)
    parts = np.zeros((len(workers), highest // width + 1))
    for row, counts in zip(parts, workers, strict=True):
        for tau, count in counts.items():
            row[tau // width] += count / sum(counts.values())
    blocks = np.array_split(parts, min(ROWS, len(workers)))
    return np.array([block.mean(axis=0) for block in blocks]), width


def share_curves(groups: Sequence[Group]) -> Any:
    """What part of the applied contributions came from each worker, in falling order; the line is an equal part."""
    figure, ((axes,),) = charts.figure_of(1, 1, width=12, height=3.2)
    count = max((len(group.shares()) for group in groups), default=0)
    for index, group in enumerate(groups):
        heights = sorted((100 * share.mean for share in group.shares().values()), reverse=True)
        axes.plot(
            range(1, len(heights) + 1), heights, color=charts.colour(index), linewidth=1.8, label=group.label
        )
    axes.axhline(100 / max(1, count), color="#555555", linewidth=1, linestyle="--")
    axes.set_ylim(bottom=0)
    charts.dress(axes, "workers, the most applied first", "share of what was applied, %")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=3, frameon=False)
    return figure
