"""Runs side by side: as a picture of loss and staleness, and as a table.

matplotlib (in the `examples` extra) draws without a display, and is imported only when it does.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich import box
from rich.table import Table
from rich.text import Text

from pslab.display.status import number
from pslab.runs.folder import Run, RunError, Summary
from psserver.policies.builtin import BUILTIN
from pswire.decisions.entries import Note, Policy
from pswire.extras import how_to_install
from pswire.knobs import knobs_of

# Okabe and Ito's palette, which any kind of colour vision can distinguish.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# Staleness from here on has one bar.
TAIL = 12
# The most characters of a note in the picture.
LONGEST_NOTE = 40

Series = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Curve:
    """Training loss of every version that has a finite one. `seconds` from the first grant."""

    seconds: Series
    versions: Series
    samples: Series
    loss: Series


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


def draw(runs: Sequence[Run], path: Path, title: str = "") -> None:
    """Write a picture in the format of the path's suffix.

    Raises RunError for an unknown suffix, an unreadable run, a file that cannot be written, or without matplotlib.
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
        raise RunError(f"the picture needs matplotlib: {how_to_install('examples')}") from error
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
    # A linear axis hides the rest of a loss that falls far.
    if spread and min(spread) > 0 and max(spread) / min(spread) > 8:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_ylabel("loss of the applied contributions (log scale)")


def _draw_notes(axes: Any, run: Run, colour: str) -> None:
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


def smoothed(values: Series) -> Series:
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
    """Return counts by staleness, with one bin from TAIL on."""
    bins: Counter[int] = Counter()
    for tau, count in histogram.items():
        bins[min(tau, TAIL)] += count
    return bins


def _colours(count: int) -> list[str]:
    return [COLOURS[index % len(COLOURS)] for index in range(count)]


@dataclass(frozen=True, slots=True)
class Row:
    """The row of one run. `policy`: its label; `accuracy`: NaN without an evaluation."""

    run: str
    policy: str
    accuracy: float
    loss: float
    versions: int
    samples_per_second: float
    dropped: int
    mean_staleness: float
    max_staleness: int
    success: bool


def rows(runs: Iterable[Run]) -> list[Row]:
    """Return one row per run. Raises RunError if a run has no readable summary."""
    found = list(runs)
    return [_row(run, label) for run, label in zip(found, labels(found), strict=True)]


def _row(run: Run, label: str) -> Row:
    summary = run.summary
    return Row(
        run=str(run.path),
        policy=label,
        accuracy=summary.metric("accuracy"),
        loss=summary.loss,
        versions=summary.versions,
        samples_per_second=summary.samples_per_second,
        dropped=sum(counts.dropped for counts in summary.contributions.values()),
        mean_staleness=summary.mean_staleness,
        max_staleness=max(summary.histogram, default=0),
        success=summary.success,
    )


def policy_label(policy: Any) -> str:
    """Return ``bounded (K=2, s<=4, drop)``: the policy's name and the knobs that distinguish runs."""
    name = str(policy.get("name", "?"))
    if name not in BUILTIN:
        return name
    knobs = {
        knob.name: (policy.get(knob.name, knob.default), knob.default) for knob in knobs_of(BUILTIN[name])
    }
    if label := BUILTIN[name].label:
        return f"{name} ({label.format(**{knob: value for knob, (value, _) in knobs.items()})})"
    changed = [f"{knob} {value}" for knob, (value, default) in knobs.items() if value != default]
    return f"{name} ({', '.join(changed)})" if changed else name


def run_label(summary: Summary) -> str:
    """Return the run's policy; if another has taken over meanwhile, the first and the last."""
    last = policy_label(summary.policy)
    return f"{policy_label(summary.began_with)}, at last {last}" if summary.began_with else last


def labels(runs: Sequence[Run]) -> list[str]:
    """Return each run's policy, with the folder's name if two runs have the same one."""
    plain = [run_label(run.summary) for run in runs]
    counts = Counter(plain)
    return [
        label if counts[label] == 1 else f"{label}, {run.name}"
        for label, run in zip(plain, runs, strict=True)
    ]


def worker_order(worker: str) -> tuple[str, int]:
    """Return a sort key that puts w10 after w9."""
    head = worker.rstrip("0123456789")
    return head, int(worker[len(head) :] or 0)


def rich_table(lines: Sequence[Row]) -> Table:
    """Return the rows as a table for a terminal."""
    table = Table(title="Runs", title_justify="left", header_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("policy", overflow="fold")
    for title in ("held-out\naccuracy", "versions", "samples\n/s", "dropped", "staleness\nmean, max"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in lines:
        table.add_row(
            Text(row.policy if row.success else f"{row.policy} (failed)", style="" if row.success else "red"),
            number(row.accuracy),
            str(row.versions),
            number(row.samples_per_second, 0),
            str(row.dropped),
            f"{number(row.mean_staleness, 2)}, {row.max_staleness}",
        )
    return table
