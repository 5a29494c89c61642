"""The command ``ps-lab sweep``."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from pslab.commands.compare import CompareOptions, comparison_of, comparison_options, show
from pslab.commands.failure import EPILOG, failures
from pslab.compare.groups import measured
from pslab.compare.halving import RungBudget, RungResult, halving, result_of, score
from pslab.compare.sweep import Cell, CellOutcome, SweepError, cells, left_out_text, sweep
from pslab.display.progress import print_json
from pslab.experiment import Experiment
from pslab.launch.engines.launcher import EngineError
from pslab.launch.simulated import SharedTrainers
from pslab.runs.folder import Run, RunError
from pswire.command.options import number_option, overrides_option
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
    help="Values of a key. Repeatable: every combination is run.",
)
@number_option("--repeat", 1, 1, "Seeds per combination, counting up from the experiment's own.")
@click.option(
    "--halve",
    metavar="KEY=START",
    help="Successive halving: run all combinations with this number, such as job.epochs=1, then repeatedly the better "
    "half of them for twice as long, up to the experiment's own number. Better means to reach --training-loss or "
    "--accuracy first, or by default a higher accuracy or a lower loss.",
)
@overrides_option("Override a key in every run.")
@click.option(
    "--engine",
    metavar="NAME",
    help="Engine, as in ps-lab run.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Folder of the run folders [default: runs/NAME-sweep]. Finished runs in it are kept.",
)
@comparison_options
@click.pass_context
def sweep_command(
    context: click.Context,
    /,
    experiment: Path,
    varied: tuple[str, ...],
    repeat: int,
    halve: str | None,
    overrides: tuple[str, ...],
    engine: str | None,
    out: Path | None,
    **options: Any,
) -> None:
    """Run EXPERIMENT with every combination of the varied values, then compare.

    An interrupted sweep continues: run folders that are finished are kept.

    \b
      ps-lab sweep examples/digits-bounded.toml --vary policy.max_staleness=0,1,2,4,8 --repeat 3
      ps-lab sweep examples/digits-bounded.toml --vary optimizer.learning_rate=0.01,0.03,0.1,0.3 --halve job.epochs=1
    """
    with failures(EngineError, ExperimentError, RunError, SweepError, JobError):
        how = comparison_of(**options)
        if engine is not None:
            overrides = (*overrides, f"run.engine={json.dumps(engine)}")
        base = Experiment.load(experiment, overrides)
        folder = out or Path("runs") / f"{base.run.name}-sweep"
        running = Sweeping(experiment, folder, how)
        if halve is None:
            runs = running.run(cells(experiment, overrides, varied, repeat))
        else:
            rungs = RungBudget.parse(halve, base).settings()
            runs = running.halve(lambda rung: cells(experiment, overrides, (*varied, rung), repeat), rungs)
        if runs:
            show(runs, how)
    if not how.as_json:
        click.echo(f"run folders: {folder}")
    context.exit(running.code)


class Sweeping:
    """Runs that are made and reported one after the other."""

    def __init__(
        self, experiment: Path, folder: Path, how: CompareOptions, trainers: SharedTrainers | None = None
    ) -> None:
        """`trainers`: of simulated runs of one job."""
        self._experiment, self._folder, self._how, self._trainers = experiment, folder, how, trainers
        self._codes: list[int] = []
        self._left_out = ""

    @property
    def code(self) -> int:
        """The code of an interruption, else the first exit code that is not 0, or 0."""
        if self.interrupted:
            return self._codes[-1]
        return next((code for code in self._codes if code), int(ExitCode.OK))

    @property
    def interrupted(self) -> bool:
        return any(code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED) for code in self._codes)

    def run(self, grid: Sequence[Cell]) -> list[Run]:
        """Return the runs that have a summary. Raises what `sweep` raises."""
        count, left_out = 0, left_out_text(grid)
        if left_out and not self._left_out:
            self._left_out = left_out
            click.echo(left_out, err=True)

        def report(outcome: CellOutcome) -> None:
            nonlocal count
            count += 1
            self._codes.append(outcome.code)
            _print_outcome(outcome, count, len(grid), self._how)

        return sweep(self._experiment, grid, self._folder, report, self._trainers)

    def halve(self, grid_of: Callable[[str], Sequence[Cell]], rungs: Sequence[str]) -> list[Run]:
        """Return the runs of the last rung. A single remaining setting skips to it."""
        runs: list[Run] = []
        results: dict[tuple[str, ...], list[RungResult]] = {}
        # The last choice of a cell is that of the rung.
        choices = dict.fromkeys(cell.choice[:-1] for cell in grid_of(rungs[0]))
        done = ""
        for rung, left in halving(choices, rungs, lambda choice: score(results.get(choice, ()))):
            if len(left) == 1 and rung != rungs[-1]:
                continue
            if done:
                self._report_rung(done, rungs.index(done), len(rungs), left)
            grid = [cell for cell in grid_of(rung) if cell.choice[:-1] in left]
            runs, done = self.run(grid), rung
            if self.interrupted:
                break
            results.clear()
            of = {cell.name: cell.choice[:-1] for cell in grid}
            for run in runs:
                found = result_of(measured(run, self._how.goals), self._how.goals)
                results.setdefault(of[run.path.name], []).append(found)
        return runs

    def _report_rung(self, rung: str, number: int, count: int, left: Sequence[tuple[str, ...]]) -> None:
        names = [", ".join(choice) for choice in left]
        if self._how.as_json:
            print_json({"event": "rung", "number": number + 1, "of": count, "budget": rung, "left": names})
            return
        click.echo(f"rung {number + 1} of {count}, {rung}: {len(left)} continue")
        for name in names:
            click.echo(f"  {name}")


def _print_outcome(outcome: CellOutcome, number: int, total: int, how: CompareOptions) -> None:
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
    state = "kept" if outcome.kept else "done" if outcome.code == ExitCode.OK else f"failed: {outcome.reason}"
    click.echo(f"{number} of {total}  {outcome.cell.name}  {state}")
