"""Groups of runs as a table, and as one JSON object."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pslab.compare.groups import Goals, Measured, RunGroup, Spread

FAILED, UNFINISHED = "failed", "unfinished"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a measure: its title, and digits and factor of its numbers."""

    measure: str
    title: str
    digits: int
    factor: float = 1.0


# In the order of importance: the last ones are left out if there is no room.
COLUMNS = (
    Column("accuracy", "accuracy", 3),
    Column("held_out_loss", "held-out loss", 3),
    Column("training_loss", "training loss", 3),
    Column("seconds", "seconds", 2),
    Column("versions", "versions", 0),
    Column("samples_per_second", "samples/s", 0),
    Column("mean_staleness", "mean staleness", 2),
    Column("max_staleness", "max staleness", 1),
    Column("dropped_share", "dropped %", 1, 100.0),
    Column("least_share", "least worker %", 1, 100.0),
    Column("most_share", "most worker %", 1, 100.0),
)
# The least width of the column of labels, in characters.
LABEL = 24


def columns_for(goals: Goals, chosen: Sequence[str] = ()) -> list[Column]:
    """Return the columns of the `chosen` measures, or those of the goals and the usual ones."""
    timed = []
    if goals.accuracy is not None:
        timed.append(Column("seconds_to_accuracy", f"s to accuracy {goals.accuracy:g}", 2))
    if goals.training_loss is not None:
        timed.append(Column("seconds_to_training_loss", f"s to training loss {goals.training_loss:g}", 2))
    if not chosen:
        return [*timed, *COLUMNS]
    known = {
        each.measure: each for each in (Column("seconds_per_version", "s per version", 4), *timed, *COLUMNS)
    }
    return [known[name] for name in chosen]


def measured_in(groups: Sequence[RunGroup], column: Column) -> bool:
    """Return True if some run of the groups has the measure."""
    return any(group.spread(column.measure).count for group in groups)


def compare_table(
    groups: Sequence[RunGroup], columns: Sequence[Column], screen: Console
) -> tuple[Table, list[str]]:
    """Return a table with one line per group, and the titles of the columns for which `screen` has no room.

    Cells are means, with ± the standard deviation if there are several runs.
    """
    shown = list(columns)
    while len(shown) > 1 and _width(groups, shown, screen) > screen.width:
        shown.pop()
    return _table(groups, shown), [column.title for column in columns[len(shown) :]]


def _width(groups: Sequence[RunGroup], columns: Sequence[Column], screen: Console) -> int:
    """Return the least width of the table, in which only labels are folded."""
    unlimited = screen.options.update(width=10**6)
    return screen.measure(_table(groups, columns, LABEL), options=unlimited).maximum


def _table(groups: Sequence[RunGroup], columns: Sequence[Column], label: int | None = None) -> Table:
    """Return the table. `label`: width limit of the labels."""
    table = Table(
        title="Policies", title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False
    )
    table.add_column("policy", overflow="fold", max_width=label)
    for title in ("runs", *(column.title for column in columns)):
        table.add_column(title, justify="right", no_wrap=True)
    for group in groups:
        states = states_of(group)
        exceptions = ", ".join(f"{count} {state}" for state, count in states.items() if count)
        cells = [f"{len(group.runs)} ({exceptions})" if exceptions else str(len(group.runs))]
        cells += [measure_text(group, column) for column in columns]
        table.add_row(Text(group.label, style="red" if states[FAILED] else ""), *cells)
    return table


def state_of(run: Measured) -> str:
    """Return how a run ended; empty for success. An unfinished one is still running, or was killed."""
    if not run.run.stopped:
        return UNFINISHED
    return "" if run.run.summary.success else FAILED


def states_of(group: RunGroup) -> dict[str, int]:
    """Return how many runs of a group failed, and how many have not finished."""
    states = Counter(state_of(run) for run in group.runs)
    return {state: states[state] for state in (FAILED, UNFINISHED)}


def measure_text(group: RunGroup, column: Column) -> str:
    """Return a measure as `spread_text`, with the number of runs that have it if not all do."""
    found = group.spread(column.measure)
    few = f" ({found.count} of {len(group.runs)})" if 0 < found.count < len(group.runs) else ""
    return spread_text(found, column.digits, column.factor) + few


def spread_text(spread: Spread, digits: int, factor: float = 1.0) -> str:
    """Return ``0.951 ±0.004``; a dash if nothing was measured, no ± for a single run."""
    if math.isnan(spread.mean):
        return "-"
    mean = f"{factor * spread.mean:.{digits}f}"
    return mean if math.isnan(spread.deviation) else f"{mean} ±{factor * spread.deviation:.{digits}f}"


def compare_json(groups: Sequence[RunGroup]) -> dict[str, Any]:
    """Return everything that the table shows, and the parts of every worker; NaN for what was not measured."""
    names = sorted({name for group in groups for run in group.runs for name in run.values})
    return {
        "event": "compare",
        "groups": [
            {
                "label": group.label,
                "policy": dict(group.runs[0].run.summary.policy),
                "runs": [str(run.run.path) for run in group.runs],
                "seeds": [run.seed for run in group.runs],
                **states_of(group),
                "measures": {name: asdict(group.spread(name)) for name in names},
                "shares": {worker: asdict(share) for worker, share in group.shares().items()},
            }
            for group in groups
        ],
    }
