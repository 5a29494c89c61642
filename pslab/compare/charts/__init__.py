"""Charts of runs, drawn by matplotlib. Here: charts by name, and one chart as a file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pslab.compare.charts import figures as charts
from pslab.compare.charts.theory import bound_chart, map_chart, measure_chart
from pslab.compare.charts.timeline import timeline_chart
from pslab.compare.groups import MEASURES, Group
from pslab.runs.folder import RunError

CHARTS = {
    "training_loss": charts.loss_chart,
    "band": charts.band_chart,
    "timeline": timeline_chart,
    "staleness": charts.staleness_chart,
    "shares": charts.share_chart,
    "bound": bound_chart,
}
# A measure over two settings.
MAP = "map:"
PLOTS = (
    *CHARTS,
    *(measure for measure in MEASURES if measure not in CHARTS),
    *(f"{MAP}{measure}" for measure in MEASURES),
)


def check_target(path: Path) -> None:
    """Raise RunError unless a chart can have that path. Call it before the runs, which may take long."""
    if path.suffix not in (".svg", ".png"):
        raise RunError(f"{path}: expected a name that ends in .svg or .png")
    if path.is_dir():
        raise RunError(f"{path}: is a folder; expected the name of a file")


def write_picture(groups: Sequence[Group], plot: str, path: Path) -> None:
    """Write the chart `plot`, one of PLOTS, in the format of the path's suffix, .svg or .png.

    Raises RunError for another suffix, if a run cannot be read, matplotlib is missing, the file cannot be written, or
    no bound holds for any group.
    """
    check_target(path)
    figure = _figure(groups, plot)
    data = charts.svg(figure).encode() if path.suffix == ".svg" else charts.png(figure)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror}") from error


def _figure(groups: Sequence[Group], plot: str) -> Any:
    if plot.startswith(MAP):
        return map_chart(groups, plot.removeprefix(MAP))
    return CHARTS[plot](groups) if plot in CHARTS else measure_chart(groups, plot)
