"""``ps-lab compare``"""

from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from pslab.commands.failure import EPILOG, Failure, console
from pslab.compare.groups import grouped
from pslab.compare.html import write_html
from pslab.compare.measure import Goals, measured
from pslab.compare.predict import pace_of, predict
from pslab.compare.predictview import prediction_json, prediction_table
from pslab.compare.table import compare_json, compare_table, starving
from pslab.progress import print_json
from pslab.runs import Run, RunError
from pslab.simulator import SimulationError
from psserver.policies import PolicyError
from pswire.delays import DelayError
from pswire.experiment import ExperimentError, load_experiment

# Characters of a line where standard output is no terminal: a file can be as wide as the table.
WIDE = 170


@click.command(epilog=EPILOG)
@click.argument("folders", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--loss", type=float, metavar="X", help="Time to a mean training loss of X (over ten versions)."
)
@click.option("--accuracy", type=float, metavar="X", help="Time to the first evaluation with this accuracy.")
@click.option(
    "--predict",
    "source",
    type=click.Path(path_type=Path),
    metavar="EXPERIMENT|RUN",
    help="Simulate each run, timing only, and compare. An experiment file declares how long steps take; "
    "from a run folder they are measured.",
)
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write a report with charts, too: one file that needs no network.",
)
@click.option("--json", "as_json", is_flag=True, help="JSON objects instead of tables.")
def compare(
    folders: tuple[Path, ...],
    loss: float | None,
    accuracy: float | None,
    source: Path | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """Put runs side by side: mean and spread over seeds of every policy and setting.

    Runs that differ by their seed only are one line. The last column is the smallest and the
    largest part of what was applied that came from one worker: a policy that never waits for
    the slow ones may starve them.

    \b
      ps-lab compare runs/digits-* --loss 0.3
      ps-lab compare runs/digits-* --predict runs/digits-async
    """
    try:
        show([Run(folder) for folder in folders], Goals(loss, accuracy), as_json=as_json, html=html)
        if source is not None:
            _predictions([Run(folder) for folder in folders], source, as_json)
    except (DelayError, ExperimentError, PolicyError, RunError, SimulationError) as error:
        raise Failure(error) from error


def show(runs: Sequence[Run], goals: Goals, *, as_json: bool, html: Path | None = None) -> None:
    """Print the comparison, and write it to `html`. Raises RunError for a run that cannot be read."""
    groups = grouped([measured(run, goals) for run in runs])
    if html is not None:
        write_html(groups, goals, html)
    if as_json:
        print_json(compare_json(groups))
        return
    screen = console()
    if not screen.is_terminal:
        screen = Console(highlight=False, width=WIDE)
    screen.print(compare_table(groups, goals))
    for line in starving(groups):
        click.echo(line)
    if html is not None:
        click.echo(f"report: {html}")


def _predictions(runs: Sequence[Run], source: Path, as_json: bool) -> None:
    times = pace_of(Run(source)) if source.is_dir() else load_experiment(source)
    found = [predict(run, times) for run in runs]
    if as_json:
        for prediction in found:
            print_json(prediction_json(prediction))
        return
    console().print(prediction_table(found))
