"""The command ``ps-lab compare``, and what it shares with ``sweep``: options, and what they print."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console

from pslab.commands.failure import EPILOG, console, failures, say_unfinished
from pslab.compare.charts import PLOTS, check_target, write_picture
from pslab.compare.group_table import COLUMNS, columns_for, compare_json, compare_table, measured_in
from pslab.compare.groups import MEASURES, Goals, RunGroup, best_of_each, goal_of, grouped
from pslab.display.progress import print_json
from pslab.display.tables import tables_view
from pslab.runs.folder import Run, RunError, later_jobs
from pswire.config.experiment import ExperimentError
from pswire.extras import how_to_install
from pswire.nearest import did_you_mean

Command = TypeVar("Command", bound=Callable[..., Any])

# Characters per line if standard output is not a terminal.
WIDE = 190


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """Requested output. `pictures`: (plot, file). `goals`: thresholds. `columns`: measures; empty for the default."""

    goals: Goals
    columns: tuple[str, ...]
    best: bool
    pictures: tuple[tuple[str, Path], ...]
    as_json: bool


def _columns(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(",")) if value is not None else ()
    for name in names:
        if name not in MEASURES:
            raise click.BadParameter(f"unknown column {name!r}{did_you_mean(name, MEASURES)}")
    if len(set(names)) != len(names):
        raise click.BadParameter(f"expected each column once, got {value!r}")
    return names


def _pictures(
    context: click.Context, parameter: click.Parameter, values: Sequence[str]
) -> tuple[tuple[str, Path], ...]:
    found: list[tuple[str, Path]] = []
    for value in values:
        plot, equals, file = value.partition("=")
        if not equals or not file or plot not in PLOTS:
            raise click.BadParameter(f"expected PLOT=FILE with PLOT one of {', '.join(PLOTS)}, got {value!r}")
        if Path(file) in (other for _, other in found):
            raise click.BadParameter(f"expected a file for each chart, got {file} twice")
        found.append((plot, Path(file)))
    return tuple(found)


_OPTIONS = (
    click.option(
        "--training-loss",
        type=float,
        metavar="X",
        help="Show the time to a mean training loss of X over ten versions.",
    ),
    click.option(
        "--accuracy", type=float, metavar="X", help="Show the time to the first evaluation with accuracy X."
    ),
    click.option(
        "--best", is_flag=True, help="Show only the setting of each policy that reaches the goal first."
    ),
    click.option(
        "--chart",
        "pictures",
        multiple=True,
        metavar="PLOT=FILE",
        callback=_pictures,
        help="Write one chart as .svg or .png: training_loss (with its spread over seeds), timeline, staleness, "
        "shares, bound, a measure over the varied key (held_out_loss, seconds_per_version, mean_staleness, "
        "dropped_share, ...). Repeatable.",
    ),
    click.option(
        "--columns",
        callback=_columns,
        metavar="NAME,NAME",
        help=f"Columns of the table: any of {', '.join(MEASURES)}.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print JSON objects instead of tables."),
)


def comparison_options(command: Command) -> Command:
    """Add the options, which the command passes to `comparison_of` as keyword arguments."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def comparison_of(
    *,
    training_loss: float | None = None,
    accuracy: float | None = None,
    best: bool = False,
    pictures: tuple[tuple[str, Path], ...] = (),
    columns: tuple[str, ...] = (),
    as_json: bool = False,
) -> CompareOptions:
    """Return the requested output. Raises RunError for options that exclude each other or lack a package."""
    goals = Goals(training_loss, accuracy)
    if columns and as_json:
        raise RunError("--columns: expected the table, got --json, which has all measures")
    for name, goal in (("seconds_to_training_loss", training_loss), ("seconds_to_accuracy", accuracy)):
        if name in columns and goal is None:
            raise RunError(
                f"--columns {name}: expected also --{name.removeprefix('seconds_to_').replace('_', '-')} X"
            )
    if best:
        goal_of(goals)
    for _, file in pictures:
        check_target(file)
    if pictures and not (find_spec("matplotlib") and find_spec("pandas")):
        raise RunError(f"charts need matplotlib and pandas: {how_to_install('examples')}")
    return CompareOptions(goals, columns, best, pictures, as_json)


def show(runs: Sequence[Run], how: CompareOptions) -> None:
    """Print the comparison and write its files. Raises RunError for a run that cannot be read."""
    groups = grouped(runs, how.goals)
    if how.best:
        groups = best_of_each(groups, how.goals)
    for plot, file in how.pictures:
        write_picture(groups, plot, file)
    if how.as_json:
        print_json(compare_json(groups))
        return
    _print_tables(groups, how)
    for _, file in how.pictures:
        click.echo(f"chart: {file}")


def _print_tables(groups: Sequence[RunGroup], how: CompareOptions) -> None:
    screen = console()
    if not screen.is_terminal:
        screen = Console(highlight=False, width=WIDE)
    columns = columns_for(how.goals, how.columns)
    if not how.columns:
        # What no run has measured is left out, but for goals.
        columns = [each for each in columns if each not in COLUMNS or measured_in(groups, each)]
    table, left_out = compare_table(groups, columns, screen)
    screen.print(table, soft_wrap=False)
    if left_out:
        click.echo(f"no room for: {', '.join(left_out)} (--columns chooses, --json has all)")
    for group in groups:
        _print_sparse(screen, group.runs[0].run)
        for each in group.runs:
            _print_left(each.run)


def _print_sparse(screen: Console, run: Run) -> None:
    if run.summary.tables:
        click.echo(f"sparse tables of {run.name}:")
        screen.print(tables_view(run.summary.tables), soft_wrap=False)


def _print_left(run: Run) -> None:
    """Say what the table does not count: data without training, and later jobs of the servers."""
    if run.summary.missing:
        click.echo(f"{run.name}: not trained on: {run.summary.missing_text}")
    if later := later_jobs(run.path):
        click.echo(f"{run.name}: its servers trained later jobs: {', '.join(map(str, later))}")


@click.command(epilog=EPILOG)
@click.argument("folders", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@comparison_options
def compare(folders: tuple[Path, ...], **options: Any) -> None:
    """Put runs side by side: mean and spread over seeds of every policy and setting.

    Runs that differ only by their seed share one line. The last columns are the smallest and largest
    share of one worker in the applied contributions: a policy that never waits for slow workers may starve
    them. Columns that do not fit the terminal are named below the table; --columns chooses columns, and
    --json has all. An unfinished run is read up to the last complete line of its log and counts as failed,
    and a note says so. Below the table stand the sparse tables of the first run of each line,
    data on which nothing was trained, and later jobs of a run's servers.

    \b
      ps-lab compare runs/digits-* --training-loss 0.3
      ps-lab compare runs/digits-* --chart timeline=timeline.svg
    """
    with failures(ExperimentError, RunError):
        how = comparison_of(**options)
        runs = [Run(folder) for folder in folders]
        say_unfinished(runs)
        show(runs, how)
