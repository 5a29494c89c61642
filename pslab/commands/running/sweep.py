"""``ps-lab sweep``"""

import json
from pathlib import Path
from typing import Any

import click

from pslab.commands.failure import EPILOG, Failure
from pslab.commands.running.showing import Show, show, showing, shown
from pslab.compare.sweep import Outcome, SweepError, cells, sweep
from pslab.display.progress import print_json
from pslab.launch.engines.launcher import EngineError
from pslab.launch.engines.registry import Options
from pslab.runs.folder import RunError
from pswire.command.options import number_option
from pswire.config.experiment import ExperimentError
from pswire.exits import ExitCode
from psworker.job.errors import JobError


@click.command("sweep", epilog=EPILOG)
@click.argument("experiment", type=click.Path(path_type=Path))
@click.option(
    "--vary",
    "varied",
    multiple=True,
    metavar="KEY=V1,V2,...",
    help="The values of a key. Repeatable: every combination is run.",
)
@number_option("--repeat", 1, 1, "Seeds per combination, counted from the experiment's own.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key in every run.")
@click.option(
    "--engine",
    metavar="NAME",
    help="As in ps-lab run.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where the run folders go [default: runs/NAME-sweep]. Finished ones in it are kept.",
)
@showing
@click.pass_context
def sweep_command(
    context: click.Context,
    /,
    experiment: Path,
    varied: tuple[str, ...],
    repeat: int,
    overrides: tuple[str, ...],
    engine: str | None,
    out: Path | None,
    **options: Any,
) -> None:
    """Run EXPERIMENT with every combination of the varied values, then compare.

    A sweep that was interrupted goes on where it was: run folders that are finished are kept.

    \b
      ps-lab sweep examples/digits-bounded.toml --vary policy.max_staleness=0,1,2,4,8 --repeat 3
    """
    try:
        how = shown(**options)
        if engine is not None:
            overrides = (*overrides, f"run.engine={json.dumps(engine)}")
        grid = cells(experiment, overrides, varied, repeat)
        folder = out or Path("runs") / f"{grid[0].experiment.run.name}-sweep"
        codes: list[int] = []

        def report(outcome: Outcome) -> None:
            codes.append(outcome.code)
            _print(outcome, len(codes), len(grid), how)

        runs = sweep(experiment, grid, folder, Options(), report)
        if runs:
            show(runs, how)
    except JobError as error:
        raise Failure(f"{error}\n{error.details}".rstrip(), ExitCode.JOB_FAILED) from error
    except (EngineError, ExperimentError, RunError, SweepError) as error:
        raise Failure(error) from error
    if not how.as_json:
        click.echo(f"run folders: {folder}", err=how.as_csv)
    context.exit(next((code for code in codes if code), int(ExitCode.OK)))


def _print(outcome: Outcome, number: int, total: int, how: Show) -> None:
    if how.as_json:
        print_json(
            {
                "event": "run",
                "name": outcome.cell.name,
                "folder": str(outcome.folder),
                "kept": outcome.kept,
                "code": outcome.code,
                "reason": outcome.reason,
            }
        )
        return
    said = "kept" if outcome.kept else "done" if outcome.code == ExitCode.OK else f"failed: {outcome.reason}"
    click.echo(f"{number} of {total}  {outcome.cell.name}  {said}", err=how.as_csv)
