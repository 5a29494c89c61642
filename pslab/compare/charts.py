"""Charts as SVG text. matplotlib (in the `examples` extra) is imported only here, and draws without a display."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from pslab.compare.curves import Curve, Span, curve, spans
from pslab.compare.groups import Group
from pslab.report import COLOURS, binned, smoothed
from pslab.runs import Run, RunError

FATES = {"applied": "#009E73", "dropped": "#D55E00", "lost": "#BBBBBB"}
# A timeline shows so many tickets of each worker: more would be a grey band.
TICKETS = 15


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def loss_chart(groups: Sequence[Group]) -> str:
    """Training loss against time, versions and samples; one faint line per run, one strong one per group."""
    figure, axes = _figure(3, 1, width=12, height=4.2)
    drawn: list[float] = []
    for index, group in enumerate(groups):
        for number, run in enumerate(group.runs):
            found = curve(run.run)
            if len(found.loss):
                drawn.append(float(smoothed(found.loss).min()))
                _loss(axes, found, colour(index), group.label if number == 0 else "", strong=number == 0)
    titles = ("seconds since the first grant", "versions", "samples of applied contributions")
    for place, title in zip(axes, titles, strict=True):
        _dress(place, title, "training loss" if place is axes[0] else "")
        place.locator_params(axis="x", nbins=6)
        # A linear axis hides everything after the first moment when the loss falls far.
        if drawn and min(drawn) > 0:
            place.set_yscale("log")
            place.yaxis.set_major_formatter("{x:g}")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower left", ncols=3, frameon=False)
    return _svg(figure)


def _loss(axes: Any, found: Curve, paint: str, label: str, *, strong: bool) -> None:
    smooth = smoothed(found.loss)
    look = {"color": paint, "linewidth": 1.8 if strong else 0.8, "alpha": 1.0 if strong else 0.45}
    for place, x in zip(axes, (found.seconds, found.versions, found.samples), strict=True):
        place.plot(x, smooth, label=label or "_", **look)


def staleness_chart(run: Run) -> str:
    """How stale the applied contributions of each worker were."""
    tables = run.summary.staleness
    figure, axes = _figure(max(1, len(tables)), 1, width=12, height=2.2, share=True)
    for place, worker in zip(axes, sorted(tables), strict=False):
        histogram = binned(type(run.summary.histogram)(tables[worker]))
        total = histogram.total() or 1
        bins = sorted(histogram)
        place.bar(bins, [100 * histogram[tau] / total for tau in bins], color=COLOURS[0])
        _dress(place, f"staleness of {worker}", "share %" if place is axes[0] else "")
        place.xaxis.get_major_locator().set_params(integer=True)
    return _svg(figure)


def share_chart(groups: Sequence[Group]) -> str:
    """What part of the applied contributions came from each worker; the line is an equal part."""
    figure, (axes,) = _figure(1, 1, width=12, height=3.2)
    width = 0.8 / max(1, len(groups))
    workers = sorted({worker for group in groups for worker in group.shares()})
    for index, group in enumerate(groups):
        shares = group.shares()
        heights = [100 * shares[worker].mean if worker in shares else 0.0 for worker in workers]
        places = np.arange(len(workers)) + (index - (len(groups) - 1) / 2) * width
        axes.bar(places, heights, width * 0.92, color=colour(index), label=group.label)
    axes.axhline(100 / max(1, len(workers)), color="#555555", linewidth=1, linestyle="--")
    axes.set_xticks(range(len(workers)), workers)
    _dress(axes, "", "share of what was applied, %")
    figure.legend(loc="outside lower left", ncols=3, frameon=False)
    return _svg(figure)


def timeline_chart(run: Run) -> str:
    """Who held a ticket when, at the start of a run, and what became of it."""
    found = _beginning(spans(run))
    workers = sorted({span.worker for span in found})
    figure, (axes,) = _figure(1, 1, width=12, height=0.8 + 0.35 * max(1, len(workers)))
    for fate, paint in FATES.items():
        for place, worker in enumerate(workers):
            bars = [(s.begin, s.end - s.begin) for s in found if s.worker == worker and s.fate == fate]
            axes.broken_barh(bars, (place - 0.38, 0.76), facecolors=paint, edgecolor="white", linewidth=0.8)
    axes.set_yticks(range(len(workers)), workers)
    axes.invert_yaxis()
    _dress(axes, "seconds since the first grant", "")
    axes.grid(visible=False)
    return _svg(figure)


def _beginning(found: Sequence[Span]) -> list[Span]:
    """Up to the moment in which the median worker has had its first few tickets."""
    ends = [[span.end for span in found if span.worker == w][:TICKETS][-1] for w in {s.worker for s in found}]
    limit = sorted(ends)[len(ends) // 2] if ends else 0.0
    return [span for span in found if span.begin <= limit]


def _figure(columns: int, rows: int, *, width: float, height: float, share: bool = False) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RunError("the charts need matplotlib: pip install 'paramserver[examples]'") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, sharex=share, sharey=share)[0]


def _dress(axes: Any, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(axis="y", color="#e3e3e3", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _svg(figure: Any) -> str:
    """Text stays text, and the same figure is the same bytes."""
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "paramserver", "font.size": 9}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return text[text.index("<svg") :]
