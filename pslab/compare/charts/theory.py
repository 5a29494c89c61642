"""Charts with theory: dashed lines are formulas, solid lines are measured."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pslab.compare.charts.figures import colour, dress, figure_of
from pslab.compare.groups import MEASURES, Group, varied_settings
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


def bound_chart(groups: Sequence[Group]) -> Any:
    """Draw one panel per kind of bound, with formula and source in the legend. Raises RunError if there is none."""
    curves, missing = bounded(groups)
    if not curves:
        raise RunError("no bound to draw: " + "; ".join(missing))
    kinds = list(dict.fromkeys(curve.kind for _, curve in curves))
    figure, (row,) = figure_of(len(kinds), 1, width=12, height=4.6)
    for place, kind in zip(row, kinds, strict=True):
        for index, (label, curve) in enumerate(curves):
            if curve.kind == kind:
                paint = colour(index)
                place.plot(curve.versions, curve.measured, color=paint, label=label)
                place.plot(curve.versions, curve.bound, color=paint, linestyle="--")
        curve = next(curve for _, curve in curves if curve.kind == kind)
        label = f"at most {curve.formula}\n({curve.source})"
        place.plot([], [], color="#555555", linestyle="--", label=label)
        dress(place, "versions", TITLES[kind])
        place.set_yscale("log")
        place.legend(frameon=False, fontsize=8)
    return figure


def bounded(groups: Sequence[Group]) -> tuple[list[tuple[str, BoundedCurve]], list[str]]:
    """Return (label, curve) of the groups that have a bound, and a sentence for each that has none."""
    found, missing = [], []
    for group in groups:
        try:
            found.append((group.label, bounded_curve([run.run for run in group.runs])))
        except NoTheoryError as error:
            missing.append(f"{group.label}: {error}")
    return found, missing


def measure_chart(groups: Sequence[Group], measure: str) -> Any:
    """Draw one measure against the numeric setting that varies most, or as bars if none does.

    Error bars are ± one standard deviation over the seeds. Raises RunError for an unknown measure.
    """
    if measure not in MEASURES:
        raise RunError(f"expected a measure, got {measure!r}; known: {', '.join(MEASURES)}")
    key = _knob(groups)
    lines = _grouped_by_others(groups, key) if key else {}
    height = 4.0 if lines else 0.8 + 0.32 * len(groups)
    figure, ((axes,),) = figure_of(1, 1, width=8, height=height)
    if key:
        _lines(axes, lines, measure, key)
    else:
        _bars(axes, groups, measure)
    title = measure.replace("_", " ")
    if key:
        dress(axes, key.replace("_", " "), title)
    else:
        dress(axes, title, "")
        axes.grid(visible=False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8)
    return figure


def map_chart(groups: Sequence[Group], measure: str) -> Any:
    """Map one measure over two numeric settings that vary: the mean over seeds in each field, white where no run is.

    Raises RunError for a measure that does not exist, and unless two numeric settings vary.
    """
    if measure not in MEASURES:
        raise RunError(f"expected a measure, got {measure!r}; known: {', '.join(MEASURES)}")
    numeric = _numeric(groups)
    if len(numeric) != 2:
        got = ", ".join(numeric) or "none"
        raise RunError(f"map of {measure}: expected two numeric settings that vary, got {got}")
    (across, columns), (along, rows) = ((key, sorted(values)) for key, values in numeric.items())
    field = np.full((len(rows), len(columns)), np.nan)
    for group in groups:
        settings = group.runs[0].settings
        if across in settings and along in settings:
            place = rows.index(settings[along]), columns.index(settings[across])
            if not np.isnan(field[place]):
                raise RunError(
                    f"map of {measure}: several groups have {across}={columns[place[1]]} and "
                    f"{along}={rows[place[0]]}; compare runs that differ in these two settings only"
                )
            field[place] = group.spread(measure).mean
    figure, ((axes,),) = figure_of(1, 1, width=8, height=1.6 + 0.5 * len(rows))
    picture = axes.imshow(field, aspect="auto", cmap="viridis", origin="lower")
    figure.colorbar(picture, ax=axes, label=measure.replace("_", " "))
    middle = (np.nanmin(field) + np.nanmax(field)) / 2 if np.isfinite(field).any() else 0.0
    for (row, column), value in np.ndenumerate(field):
        if np.isfinite(value):
            ink = "white" if value < middle else "black"
            axes.text(column, row, f"{value:.3g}", ha="center", va="center", color=ink, fontsize=8)
    axes.set_xticks(range(len(columns)), [f"{value:g}" for value in columns])
    axes.set_yticks(range(len(rows)), [f"{value:g}" for value in rows])
    dress(axes, _named(across), _named(along))
    axes.grid(visible=False)
    return figure


def _named(key: str) -> str:
    return key.rpartition(".")[2].replace("_", " ")


def _numeric(groups: Sequence[Group]) -> dict[str, list[float]]:
    """Return the settings that vary and whose values are all numbers."""
    return {
        key: values
        for key, values in varied_settings(groups).items()
        if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    }


def _knob(groups: Sequence[Group]) -> str | None:
    """Return the key with the most values, all of them numbers."""
    counts = {key: len(values) for key, values in _numeric(groups).items()}
    key = max(counts, key=lambda key: counts[key], default=None)
    # Without two points that belong together there is no line.
    if key is not None and all(len(line) == 1 for line in _grouped_by_others(groups, key).values()):
        return None
    return key


def _grouped_by_others(groups: Sequence[Group], key: str) -> dict[str, list[Group]]:
    """Return groups that differ in `key` only, by a label of their other varied settings."""
    # A knob that only one policy has adds nothing to the policy's name.
    others = [name for name, values in varied_settings(groups).items() if name != key and len(values) > 1]
    lines: dict[str, list[Group]] = {}
    for group in groups:
        settings = group.runs[0].settings
        label = ", ".join(_setting(name, settings[name]) for name in others if name in settings)
        lines.setdefault(label, []).append(group)
    return lines


def _law(group: Group, measure: str) -> tuple[float, str]:
    """Return the value that theory expects, and its formula; NaN if there is no law."""
    for claim in claims_of([run.run for run in group.runs]):
        if claim.what == CLAIMED.get(measure):
            sign = "at most " if claim.relation == "<=" else ""
            return claim.expected, f"{sign}{claim.formula} ({claim.source})"
    return math.nan, ""


def _setting(key: str, value: object) -> str:
    return str(value) if key == "policy.name" else f"{key.rpartition('.')[2]}={value}"


def _lines(axes: Any, lines: Mapping[str, Sequence[Group]], measure: str, key: str) -> None:
    groups = [group for members in lines.values() for group in members]
    for index, (label, members) in enumerate(lines.items()):
        places = [float(group.runs[0].settings[key]) for group in members]
        spreads = [group.spread(measure) for group in members]
        heights = [spread.mean for spread in spreads]
        errors = [0.0 if math.isnan(spread.deviation) else spread.deviation for spread in spreads]
        look = {"marker": "o", "markersize": 4, "capsize": 3, "color": colour(index)}
        axes.errorbar(places, heights, errors, label=label or "measured", **look)
        laws = [_law(group, measure) for group in members]
        # Special cases (K = 1, K = n) have shorter texts.
        law = max((text for _, text in laws), key=len)
        if law:
            theory = [expected for expected, _ in laws]
            axes.plot(places, theory, linestyle="--", linewidth=3, alpha=0.45, color=colour(index), label=law)
    every = sorted({float(group.runs[0].settings[key]) for group in groups})
    if every[0] > 0 and every[-1] / every[0] >= WIDE:
        axes.set_xscale("log", base=2)
    axes.set_xticks(every, [f"{value:g}" for value in every])
    axes.minorticks_off()
    heights = [group.spread(measure).mean for group in groups]
    if min(heights) > 0 and max(heights) / min(heights) >= STEEP:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)


def _bars(axes: Any, groups: Sequence[Group], measure: str) -> None:
    for index, group in enumerate(groups):
        spread = group.spread(measure)
        error = 0.0 if math.isnan(spread.deviation) else spread.deviation
        axes.barh(index, spread.mean, 0.7, xerr=error, color=colour(0), capsize=3)
        expected, law = _law(group, measure)
        if law:
            axes.plot([expected] * 2, [index - 0.42, index + 0.42], color="#000000", linestyle="--")
            axes.annotate(f" {law}", (expected, index), va="center", fontsize=7)
    axes.set_yticks(range(len(groups)), [group.label for group in groups])
    axes.invert_yaxis()
