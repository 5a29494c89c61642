"""The timeline as a figure: a row for each worker, its time in colours, and the fate of each commit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import pandas as pd

from pslab.compare.charts.plotter import dress, figure_of, legend
from pslab.compare.groups import RunGroup
from pslab.runs import work
from pslab.runs.folder import Run
from pslab.runs.frames import LogRows
from pslab.runs.labels import worker_order

# Okabe and Ito's palette, which any kind of colour vision can distinguish. Wasted time is hatched as well.
PALETTE = {
    work.COMPUTING: "#0072B2",
    work.RECEIVING: "#56B4E9",
    work.SENDING: "#E69F00",
    work.WAITING: "#E4E4E4",
    work.WASTED: "#FFFFFF",
    work.UNREPORTED: "#999999",
}
HATCHED = {"edgecolor": "#999999", "hatch": "/////", "linewidth": 0.6}
# The fate of a contribution, at its commit.
MARKS: Mapping[str, Mapping[str, Any]] = {
    "applied": {"marker": "|", "s": 190, "color": "#000000", "linewidths": 1.2},
    "dropped": {"marker": "X", "s": 46, "color": "#000000", "edgecolors": "#FFFFFF", "linewidths": 0.8},
}
# The most tickets of each worker in a timeline (more would be a grey band), and the fewest of the slowest run.
TICKETS, LEAST = 15, 3
# The most rows, and how many of them are for the slowest workers.
ROWS, SLOWEST = 32, 8
# Entries of a log that are read: enough for some tickets of each of 10,000 workers.
ENTRIES: Final = 200_000


@dataclass(frozen=True, slots=True)
class Timeline:
    """`waits` and `contributions`: as in `pslab.runs.frames`, with times from the first grant on.

    `kept`: up to this time all is in them; `seconds`: of the whole run.
    """

    waits: pd.DataFrame
    contributions: pd.DataFrame
    kept: float
    seconds: float

    @property
    def workers(self) -> list[str]:
        return sorted(self.waits.worker.unique(), key=worker_order)

    def until(self, tickets: int) -> float:
        """Return when the median worker has had `tickets` tickets or all of its own; the end if no worker has more."""
        ends = self.waits.groupby(["worker", "ticket"], sort=False).end.max().groupby("worker")
        if (ends.size() <= tickets).all():
            return self.kept
        return float(ends.head(tickets).groupby("worker").max().quantile(interpolation="higher"))


def timeline(run: Run) -> Timeline:
    """Read the beginning of a run's log. Raises RunError for an unreadable log, and if no ticket was granted."""
    begun, rows, entries = run.first_grant(), LogRows(), run.decisions()
    rows.read(run.name, islice(entries, ENTRIES))
    waits, contributions = rows.waits(), rows.contributions()
    waits[["begin", "end"]] = (waits[["begin", "end"]] - begun).clip(lower=0)
    waits = waits[waits.end > waits.begin]
    contributions.committed -= begun
    kept = float(waits.end.max()) if len(waits) else 0.0
    cut = next(entries, None) is not None
    return Timeline(waits, contributions, kept, run.summary.wall_seconds if cut else kept)


def timeline_chart(groups: Sequence[RunGroup]) -> Any:
    """Draw the beginning of each group's first run, one panel per group, on a common time axis.

    Raises RunError for an unreadable log, and without matplotlib.
    """
    found = [timeline(group.runs[0].run) for group in groups]
    # Every panel is filled as far as its run lasted.
    most, least = min(one.until(TICKETS) for one in found), max(one.until(LEAST) for one in found)
    until = min(max(most, least), *(one.kept for one in found))
    rows = [_rows(one) for one in found]
    heights = [0.9 + 0.28 * max(1, len(workers)) for workers in rows]
    figure, table = figure_of(1, len(groups), width=12, height=sum(heights) + 0.2, ratios=heights)
    for group, one, workers, (axes,) in zip(groups, found, rows, table, strict=True):
        _draw(axes, one, workers, until)
        axes.set_yticks(range(len(workers)), workers)
        axes.set_ylim(max(1, len(workers)) - 0.5, -0.5)
        axes.set_xlim(0, until or None)
        axes.set_title(
            _title(group.label if len(groups) > 1 else "", one, workers, until), loc="left", fontsize=10
        )
        dress(axes, "seconds since the first grant" if axes is table[-1][0] else "", "", grid=False)
    kinds = (*PALETTE, *MARKS)
    legend(figure, [axes for (axes,) in table], kinds, columns=len(kinds))
    return figure


def _rows(found: Timeline) -> list[str]:
    """Return all workers, or the slowest ones and an even selection of the others."""
    workers = found.workers
    if len(workers) <= ROWS:
        return workers
    busy = found.waits[found.waits.kind.isin([work.COMPUTING, work.WASTED, work.UNREPORTED])]
    pace = busy.groupby("worker").seconds.sum() / found.contributions.groupby("worker").committed.count()
    slowest = set(pace.nlargest(SLOWEST).index)
    others, room = [worker for worker in workers if worker not in slowest], ROWS - SLOWEST
    some = {others[number * len(others) // room] for number in range(room)}
    return [worker for worker in workers if worker in slowest | some]


def _title(label: str, found: Timeline, workers: Sequence[str], until: float) -> str:
    parts = [label] if label else []
    if len(workers) < len(found.workers):
        parts.append(f"{len(workers)} of {len(found.workers)} workers, with the {SLOWEST} slowest")
    # Less than a hundredth that is missing is only the end of the last ticket.
    if until < 0.99 * found.seconds:
        parts.append(f"first {_number(until)} of {_number(found.seconds)} s")
    return ", ".join(parts)


def _number(seconds: float) -> str:
    return f"{seconds:.0f}" if seconds >= 100 else f"{seconds:.3g}"


def _draw(axes: Any, found: Timeline, workers: Sequence[str], until: float) -> None:
    place = {worker: number for number, worker in enumerate(workers)}
    waits = found.waits[found.waits.begin < until]
    for (kind, worker), rows in waits.groupby(["kind", "worker"]):
        if worker in place:
            look = HATCHED if kind == work.WASTED else {"linewidth": 0}
            spans = list(zip(rows.begin, rows.end - rows.begin, strict=True))
            row = (place[worker] - 0.38, 0.76)
            axes.broken_barh(spans, row, label=kind, facecolors=PALETTE[kind], **look)
    commits = found.contributions.assign(place=found.contributions.worker.map(place))
    commits = commits[commits.committed <= until].dropna(subset="place")
    # Above the bars, so that neither hides the other.
    for fate, mark in MARKS.items():
        points = commits[commits.fate == fate]
        if len(points):
            axes.scatter(points.committed, points.place, label=fate, zorder=3, **mark)
