"""The command ``ps-lab compare``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from pslab.commands.comparison import comparison_of, comparison_options, show
from pslab.commands.failure import EPILOG, Failure, console, failures, say_unfinished, trust_option
from pslab.compare.expected_table import prediction_json, prediction_tables
from pslab.compare.predict import REPEAT, predict, step_times_of
from pslab.display.progress import print_json
from pslab.runs.folder import Run, RunError
from pslab.simulator import SimulationError
from psserver.policies import PolicyError, check_trusted
from pswire.config.distributions import DelayError
from pswire.config.experiment import ExperimentError, load_experiment


@click.command(epilog=EPILOG)
@click.argument("folders", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--predict",
    "source",
    type=click.Path(path_type=Path),
    metavar="EXPERIMENT|RUN",
    help="Simulate the timing of each run and compare. An experiment file declares how long steps take; "
    "from a run folder they are measured.",
)
@click.option(
    "--repeat",
    type=click.IntRange(min=1),
    default=REPEAT,
    show_default=True,
    help="Simulated runs per prediction: the first has the run's own seed, and so the same injected delays; each "
    "other one has a seed of its own.",
)
@trust_option
@comparison_options
def compare(folders: tuple[Path, ...], source: Path | None, repeat: int, trust: bool, **options: Any) -> None:
    """Put runs side by side: mean and spread over seeds of every policy and setting.

    Runs that differ only by their seed share one line. The last columns are the smallest and largest
    share of one worker in the applied contributions: a policy that never waits for slow workers may starve
    them. Columns that do not fit the terminal are named below the table; --columns chooses columns, and
    --csv has all. An unfinished run is read up to the last complete line of its log and counts as failed,
    and a note says so. Below the table stand the sparse tables of the first run of each line and their
    busiest rows, data on which nothing was trained, and later jobs of a run's servers.

    \b
      ps-lab compare runs/digits-* --loss 0.3
      ps-lab compare runs/digits-* --theory --chart timeline=timeline.svg
      ps-lab compare runs/digits-* --predict runs/digits-async
    """
    if source is not None and options["as_csv"]:
        raise Failure(
            "--csv: expected no --predict, because CSV is one table of measurements (--json has both)"
        )
    with failures(DelayError, ExperimentError, PolicyError, RunError, SimulationError):
        how = comparison_of(**options)
        runs = [Run(folder) for folder in folders]
        say_unfinished(runs)
        show(runs, how)
        if source is not None:
            for run in [*runs, *([Run(source)] if source.is_dir() else [])]:
                check_trusted(run.experiment.policy.name, trust)
            _predictions(runs, source, repeat, how.as_json)


def _predictions(runs: Sequence[Run], source: Path, repeat: int, as_json: bool) -> None:
    times = step_times_of(Run(source)) if source.is_dir() else load_experiment(source)
    found = [predict(run, times, repeat) for run in runs]
    if as_json:
        for prediction in found:
            print_json(prediction_json(prediction))
        return
    screen = console()
    for table in prediction_tables(found):
        screen.print(table, soft_wrap=False)
