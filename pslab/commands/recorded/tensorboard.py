"""``ps-lab tensorboard``"""

from collections import Counter
from pathlib import Path

import click

from pslab.commands.failure import EPILOG, Failure, say_unfinished
from pslab.observe.tensorboard import write_events
from pslab.runs.folder import TENSORBOARD, Run, RunError


@click.command(epilog=EPILOG)
@click.argument("folders", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="A folder for all of them, one below it for each run [default: tensorboard/ in each run folder].",
)
def tensorboard(folders: tuple[Path, ...], out: Path | None) -> None:
    """Write recorded runs as TensorBoard event files.

    Scalars over the version: loss, evaluation/NAME, staleness/mean, staleness/max,
    samples_per_second and accepted_share; and a histogram of staleness for every 100 versions. Event files
    of a former call are replaced. `ps-lab run --tensorboard` writes the same while a run goes on.

    \b
      ps-lab tensorboard runs/digits-* --out runs/events
      tensorboard --logdir runs/events
    """
    try:
        runs = [Run(folder) for folder in folders]
        say_unfinished(runs)
        twice = [
            name for name, count in Counter(run.path.resolve().name for run in runs).items() if count > 1
        ]
        if out is not None and twice:
            raise RunError(f"--out: two of these runs are called {twice[0]}; expected different names")
        for run in runs:
            target = run.path / TENSORBOARD if out is None else out / run.path.resolve().name
            points = write_events(run.path, target)
            click.echo(f"{run.path}: {points} points in {target}")
    except RunError as error:
        raise Failure(error) from error
    click.echo(f"look at them with: tensorboard --logdir {folders[0] if out is None else out}")
