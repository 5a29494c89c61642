"""Predictions as one table, sentences below it, and JSON."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from pslab.compare.groups import Spread
from pslab.predict.prediction import Prediction, PredictionRow, relative_error
from pslab.theory.measured import LawClaim


def prediction_table(predictions: Sequence[Prediction]) -> Table:
    """Return a row for each number of each prediction; a dash for what is not known."""
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    several = len(predictions) > 1
    for title in ("runs", "") if several else ("",):
        table.add_column(title, overflow="fold")
    for title in ("measured", "simulated", "theory"):
        table.add_column(title, justify="right", overflow="fold")
    for prediction in predictions:
        for number, row in enumerate(prediction.rows):
            head = [prediction.label if number == 0 else ""] if several else []
            cells = (*head, row.what, _spread(row.real), _simulated(row), _theory(row.law))
            table.add_row(*map(Text, cells), end_section=row is prediction.rows[-1])
    return table


def _simulated(row: PredictionRow) -> str:
    return _spread(row.predicted) + _off(row.error)


def _theory(law: LawClaim | None) -> str:
    if law is None:
        return "-"
    text = f"{law.relation} {_number(law.expected)}"
    if law.relation == ">=":
        return text
    if law.relation == "<=":
        return f"{text} (above it)" if law.excess > 0 else text
    return text + _off(law.excess)


def _off(error: float) -> str:
    return "" if math.isnan(error) or abs(error) < 0.0005 else f" ({error:+.1%})"


def _spread(found: Spread) -> str:
    if math.isnan(found.mean):
        return "-"
    return _number(found.mean) + (f" ±{found.deviation:.2g}" if found.deviation > 0 else "")


def _number(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"


def sentences(predictions: Sequence[Prediction]) -> Iterator[str]:
    """Yield what the columns are, what could not be simulated, and the formulas."""
    plays = max(len(each.plays) for each in predictions)
    if plays:
        yield (
            f"simulated: mean and standard deviation of {plays} runs, the first with the run's own seed and delays; in "
            "brackets the error of the mean"
        )
    formulas: dict[str, list[str]] = {}
    for each in predictions:
        head = f"{each.label}: " if len(predictions) > 1 else ""
        if each.unknown:
            yield f"{head}not simulated: {each.unknown}"
        for law in (law for law in each.laws if law.formula):
            text = f"{law.what} {law.relation} {law.formula} ({law.source})"
            formulas.setdefault(text, []).append(each.label)
    for text, labels in formulas.items():
        whose = f", {'; '.join(labels)}" if len(labels) < len(predictions) else ""
        yield f"theory{whose}: {text}"


def prediction_json(prediction: Prediction) -> dict[str, Any]:
    """Return a prediction as JSON, with NaN for missing numbers."""
    return {
        "event": "prediction",
        "label": prediction.label,
        "policy": dict(prediction.policy),
        "runs": list(map(str, prediction.runs)),
        "repeat": len(prediction.plays),
        "rows": {row.what: _row_json(row) for row in prediction.rows},
        "not_simulated": prediction.unknown or None,
    }


def _row_json(row: PredictionRow) -> dict[str, Any]:
    law = row.law
    return {
        "measured": asdict(row.real),
        "simulated": _simulated_json(row) if row.simulated else None,
        "theory": None
        if law is None
        else {
            "relation": law.relation,
            "value": law.expected,
            "measured": law.measured,
            "formula": law.formula,
            "source": law.source,
        },
    }


def _simulated_json(row: PredictionRow) -> dict[str, Any]:
    own = row.simulated[0]
    return {
        **asdict(row.predicted),
        "least": min(row.simulated),
        "most": max(row.simulated),
        "error": row.error,
        "within": row.within,
        "own_seed": {"value": own, "error": relative_error(own, row.real.mean)},
    }
