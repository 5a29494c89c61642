"""Measured numbers beside theory, and beside the simulator's prediction: tables and JSON."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from pslab.compare.groups import Group
from pslab.compare.predict import Prediction, Row, prediction_rows, relative_error
from pslab.display.status import finite_or_none
from pslab.runs.labels import labels
from pslab.theory.measured import BoundedCurve, Claim, NoTheoryError, bounded_curve, claims_of

HEAD = ("", "measured", "", "theory", "off by", "formula", "source")


def bounded(groups: Sequence[Group]) -> tuple[list[tuple[str, BoundedCurve]], list[str]]:
    """Return (label, curve) of the groups that have a bound, and a sentence for each that has none."""
    found, missing = [], []
    for group in groups:
        try:
            found.append((group.label, bounded_curve([run.run for run in group.runs])))
        except NoTheoryError as error:
            missing.append(f"{group.label}: {error}")
    return found, missing


def claims_by_group(groups: Sequence[Group]) -> list[tuple[str, list[Claim]]]:
    """Return the laws that hold for each group, and the end of its bounded curve if there is one."""
    curves = dict(bounded(groups)[0])
    return [
        (group.label, [*claims_of([run.run for run in group.runs]), *_end(curves.get(group.label))])
        for group in groups
    ]


def _end(curve: BoundedCurve | None) -> list[Claim]:
    if curve is None:
        return []
    what = "f(x_v) - f(x*)" if curve.kind == "gap" else "mean |grad f|^2"
    version = int(curve.versions[-1])
    measured, bound = float(curve.measured[-1]), float(curve.bound[-1])
    return [Claim(f"{what}, v = {version}", measured, "<=", bound, curve.formula, curve.source)]


def _rows(claims: Sequence[Claim]) -> list[tuple[str, ...]]:
    """Return rows of cells below HEAD; one row that says so for a group without any law."""
    return [_row(claim) for claim in claims] or [("no formula is known to hold", "", "", "", "", "", "")]


def _row(claim: Claim) -> tuple[str, ...]:
    off = "" if claim.relation == "<=" else f"{100 * claim.excess:+.1f} %"
    if claim.relation == "<=" and claim.excess > 0:
        off = "above"
    measured, expected = (f"{value:.{claim.digits}g}" for value in (claim.measured, claim.expected))
    return claim.what, measured, claim.relation, expected, off, claim.formula, claim.source


def theory_tables(groups: Sequence[Group]) -> Iterator[Table]:
    """Yield a table for each group."""
    for label, claims in claims_by_group(groups):
        table = Table(
            title=Text(f"Theory: {label}"), title_justify="left", header_style="bold", box=box.SIMPLE_HEAD
        )
        for number, title in enumerate(HEAD):
            table.add_column(title, justify="right" if number in (1, 3, 4) else "left", overflow="fold")
        for cells in _rows(claims):
            table.add_row(*map(Text, cells))
        yield table


def theory_json(groups: Sequence[Group]) -> dict[str, Any]:
    """Return the table as JSON, with null for missing numbers."""
    return {
        "event": "theory",
        "groups": [
            {
                "label": label,
                "claims": [
                    {
                        "what": claim.what,
                        "measured": finite_or_none(claim.measured),
                        "relation": claim.relation,
                        "theory": finite_or_none(claim.expected),
                        "formula": claim.formula,
                        "source": claim.source,
                    }
                    for claim in claims
                ],
            }
            for label, claims in claims_by_group(groups)
        ],
    }


def prediction_tables(predictions: Sequence[Prediction]) -> Iterator[Table]:
    """Yield a table for each run. Errors are those of the mean, (mean - real) / real."""
    plays = max(len(prediction.plays) for prediction in predictions)
    caption = (
        f"predicted: mean and standard deviation of {plays} simulated runs; range: the smallest and the largest "
        f"of them. A correct model has {max(0, plays - 1)} of {plays + 1} real numbers in the range. own seed: the "
        "simulated run with the delays that were also injected in the real run."
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
        # No play made a version, for example.
        return ["-", "-", "-", _known(row.real, digits), "-", "-"]
    deviation_text = "" if math.isnan(deviation) else f" ± {deviation:.{finer}f}"
    return [
        f"{mean:.{finer}f}{deviation_text}",
        f"{min(row.plays):.{digits}f} - {max(row.plays):.{digits}f}",
        f"{row.plays[0]:.{digits}f}",
        _known(row.real, digits),
        "-" if math.isnan(row.error) else f"{100 * row.error:+.1f} %",
        "-" if math.isnan(row.real) else "yes" if row.within else "no",
    ]


def _known(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def prediction_json(prediction: Prediction) -> dict[str, Any]:
    """Return the table as JSON, with null for missing numbers."""
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
