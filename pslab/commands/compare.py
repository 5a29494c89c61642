"""The command ``ps-lab compare``."""

from pathlib import Path
from typing import Any

import click

from pslab.commands.comparison import comparison_of, comparison_options, show
from pslab.commands.failure import EPILOG, failures, say_unfinished
from pslab.runs.folder import Run, RunError
from pswire.config.experiment import ExperimentError


@click.command(epilog=EPILOG)
@click.argument("folders", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@comparison_options
def compare(folders: tuple[Path, ...], **options: Any) -> None:
    """Put runs side by side: mean and spread over seeds of every policy and setting.

    Runs that differ only by their seed share one line. The last columns are the smallest and largest
    share of one worker in the applied contributions: a policy that never waits for slow workers may starve
    them. Columns that do not fit the terminal are named below the table; --columns chooses columns, and
    --csv has all. An unfinished run is read up to the last complete line of its log and counts as failed,
    and a note says so. Below the table stand the sparse tables of the first run of each line and their
    busiest rows, data on which nothing was trained, and later jobs of a run's servers.

    \b
      ps-lab compare runs/digits-* --training-loss 0.3
      ps-lab compare runs/digits-* --chart timeline=timeline.svg
    """
    with failures(ExperimentError, RunError):
        how = comparison_of(**options)
        runs = [Run(folder) for folder in folders]
        say_unfinished(runs)
        show(runs, how)
