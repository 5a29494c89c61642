"""Groups of runs as a table, and as one JSON object."""

import math
from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from pslab.compare.groups import Group, Spread
from pslab.compare.measure import Goals
from pslab.display.status import finite_or_none

# Measure, column title, digits, factor.
COLUMNS: tuple[tuple[str, str, int, float], ...] = (
    ("accuracy", "accuracy", 3, 1.0),
    ("loss", "loss", 3, 1.0),
    ("versions", "versions", 0, 1.0),
    ("samples_per_second", "samples/s", 0, 1.0),
    ("seconds", "seconds", 2, 1.0),
    ("dropped_share", "dropped %", 1, 100.0),
    ("mean_staleness", "staleness", 2, 1.0),
    ("max_staleness", "max", 1, 1.0),
)
# So many starving workers of a group have a line each.
NAMED = 5


def compare_table(groups: Sequence[Group], goals: Goals) -> Table:
    """One line per group: means, and ± the standard deviation where there are several runs."""
    table = Table(title="Policies", title_justify="left", header_style="bold")
    table.add_column("policy")
    table.add_column("runs", justify="right")
    columns = columns_for(goals)
    for _, title, _, _ in columns:
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("of a worker %", justify="right")
    for group in groups:
        failed = sum(not run.success for run in group.runs)
        count = f"{len(group.runs)} ({failed} failed)" if failed else str(len(group.runs))
        cells = [measure_text(group, name, digits, factor) for name, _, digits, factor in columns]
        table.add_row(Text(group.label, style="red" if failed else ""), count, *cells, shares_text(group))
    return table


def columns_for(goals: Goals) -> list[tuple[str, str, int, float]]:
    """The measures that are shown, with those that were asked for."""
    columns = list(COLUMNS)
    if goals.loss is not None:
        columns.append(("seconds_to_loss", f"s to loss {goals.loss:g}", 2, 1.0))
    if goals.accuracy is not None:
        columns.append(("seconds_to_accuracy", f"s to accuracy {goals.accuracy:g}", 2, 1.0))
    return columns


def shares_text(group: Group) -> str:
    """The smallest and the largest part of one worker in what was applied, in percent."""
    least, most = group.spread("least_share").mean, group.spread("most_share").mean
    return "-" if math.isnan(least) else f"{100 * least:.1f}..{100 * most:.1f}"


def measure_text(group: Group, name: str, digits: int, factor: float) -> str:
    """As `spread_text`; where only some of the runs have the measure, it says how many."""
    found = group.spread(name)
    few = f" ({found.count} of {len(group.runs)})" if 0 < found.count < len(group.runs) else ""
    return spread_text(found, digits, factor) + few


def spread_text(spread: Spread, digits: int, factor: float = 1.0) -> str:
    """``0.951 ±0.004``; a dash where nothing was measured, no ± for a single run."""
    if math.isnan(spread.mean):
        return "-"
    mean = f"{factor * spread.mean:.{digits}f}"
    return mean if math.isnan(spread.deviation) else f"{mean} ±{factor * spread.deviation:.{digits}f}"


def starving(groups: Sequence[Group], below: float = 0.25) -> list[str]:
    """A sentence for each worker whose part is less than `below` of an equal one, the worst first; of many for some."""
    lines = []
    for group in groups:
        equal = 1 / max(1, len(group.shares()))
        parts = {worker: share.mean for worker, share in group.shares().items()}
        starved = sorted((w for w, part in parts.items() if part < below * equal), key=parts.__getitem__)
        lines += [
            f"{group.label}: {worker} starves, {100 * parts[worker]:.1f} % of what was applied is its "
            f"(an equal part is {100 * equal:.1f} %)"
            for worker in starved[:NAMED]
        ]
        if len(starved) > NAMED:
            lines.append(f"{group.label}: {len(starved) - NAMED} more of {len(parts)} workers starve")
    return lines


def compare_json(groups: Sequence[Group]) -> dict[str, Any]:
    """Everything that the table shows and the parts of every worker; what was not measured is null."""
    names = sorted({name for group in groups for run in group.runs for name in run.measures.values})
    return {
        "event": "compare",
        "groups": [
            {
                "label": group.label,
                "policy": dict(group.runs[0].run.summary.policy),
                "runs": [str(run.run.path) for run in group.runs],
                "seeds": [run.seed for run in group.runs],
                "failed": sum(not run.success for run in group.runs),
                "measures": {name: spread_json(group.spread(name)) for name in names},
                "shares": {worker: spread_json(s) for worker, s in group.shares().items()},
                "acceptance": {worker: spread_json(s) for worker, s in group.acceptance().items()},
            }
            for group in groups
        ],
    }


def spread_json(spread: Spread) -> dict[str, Any]:
    """NaN becomes null."""
    return {
        "mean": finite_or_none(spread.mean),
        "deviation": finite_or_none(spread.deviation),
        "count": spread.count,
    }
