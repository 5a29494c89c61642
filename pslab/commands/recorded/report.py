"""``ps-lab report``"""

from pathlib import Path

import click

from pslab.commands.failure import EPILOG, Failure, console, say_unfinished
from pslab.runs.folder import Run, RunError, later_jobs
from pslab.runs.report import draw
from pslab.runs.table import rich_table, rows


@click.command(epilog=EPILOG)
@click.argument("folders", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), metavar="PNG", help="Draw a picture, too."
)
@click.option("--title", default="", help="The picture's title.")
def report(folders: tuple[Path, ...], out: Path | None, title: str) -> None:
    """Put runs side by side: a table and, with --out, a picture of loss and staleness.

    A run that was killed, or still goes on, is read up to the last whole line of its log; a note says so.
    """
    try:
        runs = [Run(folder) for folder in folders]
        say_unfinished(runs)
        console().print(rich_table(rows(runs)))
        for run in runs:
            if run.summary.missing:
                click.echo(f"{run.name}: not trained on: {run.summary.missing_text}")
            if later := later_jobs(run.path):
                click.echo(f"{run.name}: its servers trained more behind it: {', '.join(map(str, later))}")
        if out is not None:
            draw(runs, out, title)
            click.echo(f"picture: {out}")
    except RunError as error:
        raise Failure(error) from error
