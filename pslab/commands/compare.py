"""``ps-lab compare``"""

from collections.abc import Sequence
from pathlib import Path

import click

from pslab.commands.failure import EPILOG, Failure, console
from pslab.compare.groups import grouped
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
@click.option("--json", "as_json", is_flag=True, help="JSON objects instead of tables.")
def compare(
    folders: tuple[Path, ...], loss: float | None, accuracy: float | None, source: Path | None, as_json: bool
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
        show([Run(folder) for folder in folders], Goals(loss, accuracy), as_json=as_json)
        if source is not None:
            _predictions([Run(folder) for folder in folders], source, as_json)
    except (DelayError, ExperimentError, PolicyError, RunError, SimulationError) as error:
        raise Failure(error) from error


def show(runs: Sequence[Run], goals: Goals, *, as_json: bool) -> None:
    """Print the comparison. Raises RunError for a run that cannot be read."""
    groups = grouped([measured(run, goals) for run in runs])
    if as_json:
        print_json(compare_json(groups))
        return
    console().print(compare_table(groups, goals))
    for line in starving(groups):
        click.echo(line)


def _predictions(runs: Sequence[Run], source: Path, as_json: bool) -> None:
    times = pace_of(Run(source)) if source.is_dir() else load_experiment(source)
    found = [predict(run, times) for run in runs]
    if as_json:
        for prediction in found:
            print_json(prediction_json(prediction))
        return
    console().print(prediction_table(found))
