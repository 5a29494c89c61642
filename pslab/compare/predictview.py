"""Predicted and real, side by side."""

import math
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from pslab.compare.predict import Prediction, relative_error
from pslab.table import labels


def _rows(prediction: Prediction) -> list[tuple[str, float, float, int]]:
    """(what, predicted, real, digits)"""
    predicted, real = prediction.predicted, prediction.real
    rows: list[tuple[str, float, float, int]] = [
        ("ms per version", 1e3 * predicted.seconds_per_version, 1e3 * real.seconds_per_version, 2),
        ("versions", predicted.versions, real.versions, 0),
        ("mean staleness", predicted.mean_staleness, real.mean_staleness, 3),
        ("max staleness", predicted.max_staleness, real.max_staleness, 0),
        ("dropped", predicted.dropped, real.dropped, 0),
    ]
    for worker in sorted(real.drops) if real.dropped or predicted.dropped else ():
        rows.append((f"dropped of {worker}", predicted.drops.get(worker, 0), real.drops[worker], 0))
    return rows


def prediction_table(predictions: Sequence[Prediction]) -> Table:
    """One block per run; errors are (predicted - real) / real."""
    table = Table(title="The simulator's predictions", title_justify="left", header_style="bold")
    table.add_column("run")
    table.add_column("")
    for title in ("predicted", "real", "error"):
        table.add_column(title, justify="right")
    names = labels([prediction.run for prediction in predictions])
    for label, prediction in zip(names, predictions, strict=True):
        for place, (what, predicted, real, digits) in enumerate(_rows(prediction)):
            error = relative_error(predicted, real)
            spoken = "-" if math.isnan(error) else f"{100 * error:+.1f} %"
            head = label if place == 0 else ""
            table.add_row(head, what, f"{predicted:.{digits}f}", f"{real:.{digits}f}", spoken)
        table.add_section()
    return table


def prediction_json(prediction: Prediction) -> dict[str, Any]:
    """Numbers that do not exist are null."""
    return {
        "event": "prediction",
        "run": str(prediction.run.path),
        "policy": dict(prediction.run.summary.policy),
        "rows": {
            what: {
                "predicted": _plain(predicted),
                "real": _plain(real),
                "error": _plain(relative_error(predicted, real)),
            }
            for what, predicted, real, _ in _rows(prediction)
        },
    }


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None
