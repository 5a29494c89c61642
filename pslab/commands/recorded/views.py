"""``ps-lab report``, ``check``, ``trace`` and ``tensorboard``"""

from collections import Counter
from pathlib import Path

import click

from pslab.check.checker import check_run, result_json, result_lines
from pslab.commands.failure import EPILOG, Failure, console, say_unfinished
from pslab.display.progress import print_json
from pslab.observe.tensorboard import write_events
from pslab.observe.trace import write_trace
from pslab.runs.folder import TENSORBOARD, TRACE, Run, RunError, later_jobs
from pslab.runs.report import draw, rich_table, rows
from pswire.exits import ExitCode


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


@click.command(epilog=EPILOG)
@click.argument("folders", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="All violations and counts, one JSON object per job.")
@click.pass_context
def check(context: click.Context, folders: tuple[Path, ...], as_json: bool) -> None:
    """Verify a run's decision log.

    Reads RUN/decisions.jsonl once and reports every violation with its line and a sentence:
    numbering, tickets, accounting, versions, staleness, weights, the policy's own guarantee,
    and that summary.json, metrics.jsonl and weights.safetensors agree. Prints the staleness conservation law.
    A run that was killed, or still goes on, is checked up to the last whole line of its log; a note
    says so, and is no failure. Later jobs of the run's servers, such as RUN/job-2, are checked, too.
    Exits with 9 when a check fails.
    """
    kept = True
    for folder in (job for run in folders for job in (run, *later_jobs(run))):
        try:
            verdict = check_run(Run(folder))
        except RunError as error:
            raise Failure(error) from error
        kept &= verdict.ok
        if as_json:
            print_json(result_json(str(folder), verdict))
        else:
            for line in result_lines(str(folder), verdict):
                console().print(line)
    context.exit(int(ExitCode.OK if kept else ExitCode.VIOLATIONS))


@click.command(epilog=EPILOG)
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Where to write it [default: RUN/trace.json].",
)
def trace(folder: Path, out: Path | None) -> None:
    """Write a run as a trace to look at in a timeline viewer: who computed, communicated and waited when.

    The file is in the Trace Event Format (JSON). Open it at https://ui.perfetto.dev, which reads it
    in your browser without sending it anywhere. Every worker has a lane with a slice per ticket, and in
    it pull, compute and push; an arrow leads from each contribution to the update that applied it.
    Click a slice for its staleness, its weight and what became of it. Drops, cancelled tickets, lost
    workers and returns are marks in the lane.

    RUN is the folder of any run with a decision log: local, simulated, finished or not.
    """
    try:
        run = Run(folder)
        say_unfinished([run])
        target = out or run.path / TRACE
        count = write_trace(run.decisions(), target)
    except RunError as error:
        raise Failure(error) from error
    except OSError as error:
        raise Failure(f"{error.filename}: cannot be written: {error.strerror}") from error
    click.echo(f"trace: {target} ({count} events)")


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
