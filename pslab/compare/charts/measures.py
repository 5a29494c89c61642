"""Charts of measures over the settings in which groups differ, and of bounds. Dashed lines are formulas."""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from pslab.compare.charts.plotter import colour, dress, figure_of, lines, theory
from pslab.compare.groups import RunGroup, varied_settings
from pslab.runs.folder import RunError
from pslab.theory.measured import BoundedCurve, NoTheoryError, bounded_curve, claims_of

TITLES = {
    "gap": "f(x_v) - f(x*)",
    "gradient": "mean of |grad f(x_i)|^2, i = 0 .. v",
}
# Measures with laws -> the names of their claims.
CLAIMED = {"seconds_per_version": "seconds per version", "mean_staleness": "mean staleness"}
# The ratio of the largest to the least value from which an axis is logarithmic: of a knob, and of a measure.
WIDE, STEEP = 16, 100


def bound_chart(groups: Sequence[RunGroup]) -> Any:
    """Draw one panel per kind of bound, with formula and source in the legend. Raises RunError if there is none."""
    curves, missing = bounded(groups)
    if not curves:
        raise RunError("no bound to draw: " + "; ".join(missing))
    kinds = {curve.kind: curve for _, curve in reversed(curves)}
    figure, (row,) = figure_of(len(kinds), 1, width=12, height=4.6)
    for place, (kind, first) in zip(row, reversed(kinds.items()), strict=True):
        for index, (label, curve) in enumerate(curves):
            if curve.kind == kind:
                lines(place, curve.versions, curve.measured, label=label, paint=colour(index))
                theory(place, curve.versions, curve.bound, label="", paint=colour(index))
        theory(place, [], [], label=f"at most {first.formula}\n({first.source})", paint="#555555")
        dress(place, "versions", TITLES[kind])
        place.set_yscale("log")
        place.legend(frameon=False, fontsize=8)
    return figure


def bounded(groups: Sequence[RunGroup]) -> tuple[list[tuple[str, BoundedCurve]], list[str]]:
    """Return (label, curve) of the groups that have a bound, and a sentence for each that has none."""
    found, missing = [], []
    for group in groups:
        try:
            found.append((group.label, bounded_curve([run.run for run in group.runs])))
        except NoTheoryError as error:
            missing.append(f"{group.label}: {error}")
    return found, missing


def measure_chart(groups: Sequence[RunGroup], measure: str) -> Any:
    """Draw one measure against the numeric setting that varies most, or as bars if none does.

    Error bars are ± one standard deviation over the seeds.
    """
    table = _measured(groups, measure)
    key = _knob(groups)
    figure, ((axes,),) = figure_of(1, 1, width=8, height=4.0 if key else 0.8 + 0.32 * len(groups))
    title = measure.replace("_", " ")
    if key:
        _lines(axes, table.assign(line=_others(groups, key)), key)
        dress(axes, key.replace("_", " "), title)
    else:
        _bars(axes, table)
        dress(axes, title, "", grid=False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8)
    return figure


def _measured(groups: Sequence[RunGroup], measure: str) -> pd.DataFrame:
    """Return a row for each group: settings, `label`, `mean`, `deviation`; `law` by `formula`, where theory has one."""
    rows = []
    for group in groups:
        found, (law, formula) = group.spread(measure), _law(group, measure)
        told = {"label": group.label, "mean": found.mean, "deviation": found.deviation}
        rows.append({**group.runs[0].settings, **told, "law": law, "formula": formula})
    return pd.DataFrame(rows).fillna({"deviation": 0.0})


def _numeric(groups: Sequence[RunGroup]) -> list[str]:
    """Return the settings that vary and whose values are all numbers."""
    return [
        key
        for key, values in varied_settings(groups).items()
        if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    ]


def _knob(groups: Sequence[RunGroup]) -> str | None:
    """Return the numeric setting with the most values; None where no two groups lie on one line."""
    varied = varied_settings(groups)
    key = max(_numeric(groups), key=lambda name: len(varied[name]), default=None)
    alone = key is not None and not pd.Series(_others(groups, key)).duplicated().any()
    return None if alone else key


def _others(groups: Sequence[RunGroup], key: str) -> list[str]:
    """Return a label for each group, of the settings beside `key` in which they differ."""
    # A knob that only one policy has adds nothing to the policy's name.
    others = [name for name, values in varied_settings(groups).items() if name != key and len(values) > 1]
    tables = [group.runs[0].settings for group in groups]
    return [", ".join(_setting(name, table[name]) for name in others if name in table) for table in tables]


def _setting(key: str, value: object) -> str:
    return str(value) if key == "policy.name" else f"{key.rpartition('.')[2]}={value}"


def _law(group: RunGroup, measure: str) -> tuple[float, str]:
    """Return the value that theory expects, and its formula; NaN if there is no law."""
    for claim in claims_of([run.run for run in group.runs]) if measure in CLAIMED else []:
        if claim.what == CLAIMED[measure]:
            sign = "at most " if claim.relation == "<=" else ""
            return claim.expected, f"{sign}{claim.formula} ({claim.source})"
    return math.nan, ""


def _lines(axes: Any, table: pd.DataFrame, key: str) -> None:
    for index, (label, rows) in enumerate(table.groupby("line", sort=False)):
        if rows[key].isna().any():
            # A policy without this knob is the same at each of its values.
            for mean in rows["mean"]:
                axes.axhline(mean, color=colour(index), label=label)
            continue
        look = {"marker": "o", "markersize": 4, "capsize": 3, "color": colour(index)}
        axes.errorbar(rows[key], rows["mean"], rows.deviation, label=label or "measured", **look)
        # Special cases (K = 1, K = n) have shorter texts.
        if formula := max(rows.formula, key=len):
            theory(axes, rows[key], rows.law, label=formula, paint=colour(index))
    ticks = sorted(table[key].dropna().unique())
    if ticks[0] > 0 and ticks[-1] / ticks[0] >= WIDE:
        axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{value:g}" for value in ticks])
    axes.minorticks_off()
    least, most = table["mean"].min(), table["mean"].max()
    if least > 0 and most / least >= STEEP:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)


def _bars(axes: Any, table: pd.DataFrame) -> None:
    axes.barh(table.index, table["mean"], 0.7, xerr=table.deviation, color=colour(0), capsize=3)
    for index, row in table[table.formula != ""].iterrows():
        axes.plot([row.law] * 2, [index - 0.42, index + 0.42], color="#000000", linestyle="--")
        axes.annotate(f" {row.formula}", (row.law, index), va="center", fontsize=7)
    axes.set_yticks(table.index, table.label)
    axes.invert_yaxis()
