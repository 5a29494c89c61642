"""Runs the cells of a sweep one after the other. What is finished is kept, so that a sweep can be taken up again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pslab.compare.grid import Cell
from pslab.display.progress import Quiet
from pslab.launch.engines.registry import Options, Setting, engine_named, launcher_for
from pslab.launch.experiments import FinishedRun, checked, run_real
from pslab.launch.simulated import run_simulated
from pslab.runs.folder import EXPERIMENT, SUMMARY, Run, RunError
from pswire.config.experiment import ExperimentError
from pswire.exits import ExitCode


@dataclass(frozen=True, slots=True)
class Outcome:
    """A cell's run. `kept`: it was finished before; `code` is 0 then."""

    cell: Cell
    folder: Path
    kept: bool
    code: int
    reason: str = ""


def sweep(
    path: Path, cells: Sequence[Cell], out: Path, options: Options, report: Callable[[Outcome], None]
) -> list[Run]:
    """The runs that came to a summary, in order; `report` is called after each cell.

    A run folder that is complete and was made from the same experiment is
    kept; a partial one is made again. Stops at an interruption. `options`:
    for the experiments' engine. Raises RunError when a finished folder holds
    another experiment, EngineError where the engine cannot be had.
    """
    runs = []
    for cell in cells:
        outcome = _one(path, cell, out / cell.name, options)
        report(outcome)
        if outcome.code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED):
            break
        if (outcome.folder / SUMMARY).is_file():
            runs.append(Run(outcome.folder))
    return runs


def _one(path: Path, cell: Cell, folder: Path, options: Options) -> Outcome:
    if finished(folder, cell):
        return Outcome(cell, folder, True, ExitCode.OK)
    experiment = cell.experiment
    if engine_named(experiment.run.engine).make is None:
        done: FinishedRun = run_simulated(experiment, out=folder, force=True, quiet=True)
    else:
        launcher = launcher_for(Setting(checked(experiment, path), options, Path.cwd()))
        done = run_real(experiment, Quiet(), launcher, out=folder, force=True)
    verdict = done.result.verdict
    return Outcome(cell, folder, False, int(verdict.code), verdict.reason)


def finished(folder: Path, cell: Cell) -> bool:
    """The folder holds the cell's run, to its end. Raises RunError when it holds that of another experiment."""
    if not (folder / EXPERIMENT).is_file() or not (folder / SUMMARY).is_file():
        return False
    run = Run(folder)
    try:
        same = run.experiment == cell.experiment
    except ExperimentError:
        return False
    if not run.summary.success:
        return False
    if not same:
        raise RunError(
            f"{folder}: holds a finished run of another experiment: choose another --out, or remove that folder"
        )
    return True
