"""Predicted and real, side by side."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from pslab.compare.predict import Prediction, Row, prediction_rows, relative_error
from pslab.display.status import finite_or_none
from pslab.runs.table import labels


def prediction_tables(predictions: Sequence[Prediction]) -> Iterator[Table]:
    """One for each run. Errors are those of the mean, (mean - real) / real."""
    plays = max(len(prediction.plays) for prediction in predictions)
    caption = (
        f"predicted: mean and standard deviation of {plays} simulated runs; range: the smallest and the largest "
        f"of them. A right model has {max(0, plays - 1)} of {plays + 1} real numbers in the range. own seed: the one "
        "with the delays that were injected in the real run, too."
    )
    for label, prediction in zip(labels([each.run for each in predictions]), predictions, strict=True):
        table = Table(
            title=Text(f"The simulator's prediction: {label}"),
            title_justify="left",
            header_style="bold",
            box=box.SIMPLE_HEAD,
            caption=caption if prediction is predictions[-1] else None,
            caption_justify="left",
        )
        table.add_column("")
        for title in ("predicted", "range", "own seed", "real", "error", "in range"):
            table.add_column(title, justify="right")
        for row in prediction_rows(prediction):
            table.add_row(row.what, *_cells(row))
        yield table


def _cells(row: Row) -> list[str]:
    digits, mean, deviation = row.digits, row.predicted.mean, row.predicted.deviation
    # Means of whole numbers are not whole.
    finer = max(1, digits)
    if math.isnan(mean):
        # Nobody made a version, say.
        return ["-", "-", "-", _known(row.real, digits), "-", "-"]
    give_or_take = "" if math.isnan(deviation) else f" ± {deviation:.{finer}f}"
    return [
        f"{mean:.{finer}f}{give_or_take}",
        f"{min(row.plays):.{digits}f} - {max(row.plays):.{digits}f}",
        f"{row.plays[0]:.{digits}f}",
        _known(row.real, digits),
        "-" if math.isnan(row.error) else f"{100 * row.error:+.1f} %",
        "-" if math.isnan(row.real) else "yes" if row.within else "no",
    ]


def _known(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def prediction_json(prediction: Prediction) -> dict[str, Any]:
    """Numbers that do not exist are null."""
    return {
        "event": "prediction",
        "run": str(prediction.run.path),
        "policy": dict(prediction.run.summary.policy),
        "repeat": len(prediction.plays),
        "rows": {row.what: _row_json(row) for row in prediction_rows(prediction)},
    }


def _row_json(row: Row) -> dict[str, Any]:
    own = row.plays[0]
    return {
        "predicted": finite_or_none(row.predicted.mean),
        "deviation": finite_or_none(row.predicted.deviation),
        "least": finite_or_none(min(row.plays)),
        "most": finite_or_none(max(row.plays)),
        "real": finite_or_none(row.real),
        "error": finite_or_none(row.error),
        "within": row.within,
        "own_seed": {
            "predicted": finite_or_none(own),
            "error": finite_or_none(relative_error(own, row.real)),
        },
    }
