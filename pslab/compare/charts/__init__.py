"""Charts of runs, drawn by matplotlib from pandas frames. Here: charts by name, and one chart as a file.

plotter   lines, bars and maps on figures, and figures as files
runs      what happened in runs: losses, staleness, shares of workers
measures  measures over settings, and bounds
timeline  what each worker did when: compute, communicate, wait

Loading pandas takes half a second, so it is loaded only to draw.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pslab.compare.groups import MEASURES, RunGroup
from pslab.runs.folder import RunError

# Beside these, every measure is a chart of its own.
CHARTS = ("training_loss", "timeline", "staleness", "shares", "bound")
PLOTS = (*CHARTS, *(measure for measure in MEASURES if measure not in CHARTS))


def check_target(path: Path) -> None:
    """Raise RunError unless a chart can have that path. Call it before the runs, which may take long."""
    if path.suffix not in (".svg", ".png"):
        raise RunError(f"{path}: expected a name that ends in .svg or .png")
    if path.is_dir():
        raise RunError(f"{path}: is a folder; expected the name of a file")


def write_picture(groups: Sequence[RunGroup], plot: str, path: Path) -> None:
    """Write the chart `plot`, one of PLOTS, in the format of the path's suffix, .svg or .png.

    Raises RunError for another suffix, if a run cannot be read, matplotlib is missing, the file cannot be written, or
    no bound holds for any group.
    """
    from pslab.compare.charts.plotter import png, svg

    check_target(path)
    figure = _figure(groups, plot)
    data = svg(figure).encode() if path.suffix == ".svg" else png(figure)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror}") from error


def _figure(groups: Sequence[RunGroup], plot: str) -> Any:
    from pslab.compare.charts import measures, runs, timeline

    charts = {
        "training_loss": runs.loss_chart,
        "timeline": timeline.timeline_chart,
        "staleness": runs.staleness_chart,
        "shares": runs.share_chart,
        "bound": measures.bound_chart,
    }
    if plot in charts:
        return charts[plot](groups)
    return measures.measure_chart(groups, plot)
