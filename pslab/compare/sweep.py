"""Sweeps: every combination of the varied values with several seeds, run one after the other.

What is finished is kept, so that a sweep can be taken up again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from pslab.display.progress import Quiet
from pslab.launch.engines.registry import Options, Setting, engine_named, launcher_for
from pslab.launch.experiments import FinishedRun, checked, run_real
from pslab.launch.simulated import run_simulated
from pslab.runs.folder import EXPERIMENT, SUMMARY, Run, RunError
from psserver.policies import PolicyError
from psserver.policies import build as build_policy
from pswire.config.experiment import Experiment, ExperimentError, load_experiment
from pswire.config.toml import parse_value, read_toml
from pswire.exits import ExitCode


class SweepError(ValueError):
    """A --vary that cannot be understood."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One experiment of a sweep.

    `name`: that of its run folder; `overrides`: as for ``ps-lab run --set``; `choice`: those of them that vary.
    """

    name: str
    overrides: tuple[str, ...]
    choice: tuple[str, ...]
    experiment: Experiment


def vary(text: str) -> list[str]:
    """``key=v1,v2`` as overrides ``key=v1``, ``key=v2``. Commas inside TOML arrays, tables and strings do not separate.

    The key may be a section whose values are tables: ``policy={name = "sync"},{name = "k-sync", aggregate = 4}``.
    Raises SweepError.
    """
    key, equals, values = text.partition("=")
    parts = _split(values)
    tables = all(part.strip().startswith("{") for part in parts)
    if not equals or not ("." in key or tables) or not all(part.strip() for part in key.split(".")):
        raise SweepError(f"expected section.key=v1,v2,... (policy.max_staleness=0,1,2, say), got {text!r}")
    if not all(part.strip() for part in parts):
        raise SweepError(f"{text!r}: expected a value between every two commas, got none")
    found = [f"{key.strip()}={part.strip()}" for part in parts]
    if len(set(found)) != len(found):
        raise SweepError(f"{text!r}: names a value twice")
    return found


def _split(values: str) -> list[str]:
    """At the commas where each part by itself is a TOML value, or else at every comma (bare words)."""
    pieces, parts = values.split(","), list[str]()
    for piece in pieces:
        # An opened bracket or quote, or table, goes on behind the comma.
        if parts and _open(parts[-1]):
            parts[-1] += "," + piece
        else:
            parts.append(piece)
    return parts


def _open(text: str) -> bool:
    begins = text.strip()[:1]
    if begins not in ("[", "{", '"', "'"):
        return False
    try:
        read_toml(f"value = {text}")
    except ValueError:
        return True
    return False


def cells(path: Path, overrides: Sequence[str], varied: Sequence[str], repeat: int) -> list[Cell]:
    """Every experiment, seeds innermost. Raises SweepError and ExperimentError, before anything runs.

    Seeds count from the experiment's own; workers that share a seed see the
    same data in the same order under every policy.
    """
    axes = [vary(text) for text in varied]
    base = load_experiment(path, overrides)
    found = []
    for chosen in product(*axes):
        for number in range(repeat):
            seed = base.run.seed + number
            all_overrides = (*overrides, *chosen, f"run.seed={seed}")
            name = _name([*chosen, f"run.seed={seed}"])
            experiment = load_experiment(path, all_overrides)
            _check_policy(experiment)
            found.append(Cell(name, all_overrides, chosen, experiment))
    return found


def _check_policy(experiment: Experiment) -> None:
    """A built-in policy with its knobs; a user's own is code, and the engine's to import."""
    policy, cluster = experiment.policy, experiment.cluster
    if ":" in policy.name:
        return
    try:
        build_policy(policy.name, policy.knobs, cluster.workers, cluster.servers)
    except PolicyError as error:
        raise ExperimentError(str(error)) from error


def _name(settings: Sequence[str]) -> str:
    """``max_staleness=2,seed=1``, with nothing in it that a file system would not take."""
    pairs = (setting.partition("=") for setting in settings)
    text = ",".join(_part(key.rpartition(".")[2], parse_value(value), value) for key, _, value in pairs)
    return "".join(letter if letter.isalnum() or letter in "=,._-+" else "_" for letter in text)


def _part(key: str, value: object, text: str) -> str:
    """``policy={name = "k-sync", aggregate = 4}`` is ``k-sync,aggregate=4``."""
    if not isinstance(value, dict) or "name" not in value:
        return f"{key}={text}"
    rest = [f"{name}={inner}" for name, inner in value.items() if name != "name"]
    return ",".join([str(value["name"]), *rest])


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
