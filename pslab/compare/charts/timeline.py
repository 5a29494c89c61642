"""The timeline as a figure: a row for each worker, its time in colours, and the fate of each commit."""

from collections.abc import Mapping, Sequence
from typing import Any

from pslab.compare import timeline as tl
from pslab.compare.charts.figures import dress, figure_of
from pslab.compare.groups import Group
from pslab.runs import work
from pslab.runs.labels import worker_order

# Okabe and Ito's palette, which any kind of colour vision can distinguish. Wasted time is hatched as well.
PALETTE = {
    work.COMPUTING: "#0072B2",
    work.RECEIVING: "#56B4E9",
    work.SENDING: "#E69F00",
    work.WAITING: "#E4E4E4",
    work.TURN: "#C4C4C4",
    work.WASTED: "#FFFFFF",
    work.UNREPORTED: "#999999",
}
# The fate of a contribution, at its commit.
MARKS: Mapping[str, Mapping[str, Any]] = {
    "applied": {"marker": "|", "s": 190, "color": "#000000", "linewidths": 1.2},
    "dropped": {"marker": "X", "s": 46, "color": "#000000", "edgecolors": "#FFFFFF", "linewidths": 0.8},
}
# The most tickets of each worker in a timeline (more would be a grey band), and the fewest of the slowest run.
TICKETS, LEAST = 15, 3
# The most rows, and how many of them are for the slowest workers.
ROWS, SLOWEST = 32, 8


def timeline_chart(groups: Sequence[Group]) -> Any:
    """Draw the beginning of each group's first run, one panel per group, on a common time axis.

    Raises RunError for an unreadable log, and without matplotlib.
    """
    found = [tl.timeline(group.runs[0].run) for group in groups]
    until = _until(found)
    rows = [_rows(one) for one in found]
    heights = [0.9 + 0.28 * max(1, len(lanes)) for lanes in rows]
    figure, table = figure_of(1, len(groups), width=12, height=sum(heights) + 0.2, ratios=heights)
    for group, one, lanes, (axes,) in zip(groups, found, rows, table, strict=True):
        _draw(axes, lanes, until)
        axes.set_yticks(range(len(lanes)), [lane.worker for lane in lanes])
        axes.set_ylim(max(1, len(lanes)) - 0.5, -0.5)
        axes.set_xlim(0, until or None)
        axes.set_title(
            _title(group.label if len(groups) > 1 else "", one, lanes, until), loc="left", fontsize=10
        )
        dress(axes, "seconds since the first grant" if axes is table[-1][0] else "", "")
        axes.grid(visible=False)
    _legend(figure, [axes for (axes,) in table])
    return figure


def _until(found: Sequence[tl.Timeline]) -> float:
    """Return the end of the time axis, such that every panel is filled as far as its run lasted."""
    most = min((one.until(TICKETS) for one in found), default=0.0)
    least = max((one.until(LEAST) for one in found), default=0.0)
    kept = min((one.kept for one in found), default=0.0)
    return min(max(most, least), kept)


def _rows(found: tl.Timeline) -> list[tl.Lane]:
    """Return all workers, or the slowest ones and an even selection of the others."""
    lanes = sorted(found.lanes, key=lambda lane: worker_order(lane.worker))
    if len(lanes) <= ROWS:
        return lanes
    slowest = {lane.worker for lane in sorted(lanes, key=lambda lane: -lane.pace)[:SLOWEST]}
    others, room = [lane for lane in lanes if lane.worker not in slowest], ROWS - SLOWEST
    some = {others[number * len(others) // room].worker for number in range(room)}
    return [lane for lane in lanes if lane.worker in slowest | some]


def _title(label: str, found: tl.Timeline, lanes: Sequence[tl.Lane], until: float) -> str:
    parts = [label] if label else []
    if len(lanes) < len(found.lanes):
        parts.append(f"{len(lanes)} of {len(found.lanes)} workers, with the {SLOWEST} slowest")
    # Less than a hundredth that is missing is only the end of the last ticket.
    if until < 0.99 * found.seconds:
        parts.append(f"first {_number(until)} of {_number(found.seconds)} s")
    return ", ".join(parts)


def _number(seconds: float) -> str:
    return f"{seconds:.0f}" if seconds >= 100 else f"{seconds:.3g}"


def _draw(axes: Any, lanes: Sequence[tl.Lane], until: float) -> None:
    for kind, paint in PALETTE.items():
        for place, lane in enumerate(lanes):
            bars = [(s.begin, s.end - s.begin) for s in lane.stretches if s.kind == kind and s.begin < until]
            if bars:
                look = _look(kind, paint)
                axes.broken_barh(bars, (place - 0.38, 0.76), label=kind, **look)
    marks = [
        (at, place, fate) for place, lane in enumerate(lanes) for at, fate in lane.commits if at <= until
    ]
    # Above the bars, so that neither hides the other.
    for fate, mark in MARKS.items():
        points = [(at, place) for at, place, found in marks if found == fate]
        if points:
            axes.scatter(*zip(*points, strict=True), label=fate, zorder=3, **mark)


def _look(kind: str, paint: str) -> dict[str, Any]:
    if kind == work.WASTED:
        return {"facecolors": paint, "edgecolor": "#999999", "hatch": "/////", "linewidth": 0.6}
    return {"facecolors": paint, "linewidth": 0}


def _legend(figure: Any, panels: Sequence[Any]) -> None:
    """Draw a legend with each label once, in a fixed order."""
    handles: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    order = [name for name in (*PALETTE, *MARKS) if name in handles]
    names = list(dict.fromkeys(order))
    if names:
        figure.legend(
            [handles[name] for name in names],
            names,
            loc="outside lower left",
            ncols=len(names),
            frameon=False,
        )
