"""Sweeps: every combination of the varied values with several seeds, run one after the other.

Finished runs are kept, so that an interrupted sweep can be continued.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from pslab.display.progress import Quiet
from pslab.experiment import Experiment
from pslab.launch.engines.registry import EngineOptions, engine_named, launcher_for
from pslab.launch.experiments import FinishedRun, checked, run_real
from pslab.launch.job_place import with_job
from pslab.launch.simulated import SharedTrainers, run_simulated
from pslab.runs.folder import EXPERIMENT, SUMMARY, Run, RunError
from psserver.optimizers.registry import describe
from psserver.optimizers.registry import names as optimizers
from psserver.policies import PolicyError
from psserver.policies import build as build_policy
from psserver.policies.builtin import BUILTIN
from pswire.config.experiment import ExperimentError
from pswire.config.toml import parse_value, read_toml
from pswire.exits import ExitCode
from pswire.knobs import knobs_of


class SweepError(ValueError):
    """A --vary that cannot be parsed."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One experiment of a sweep.

    `name`: of its run folder. `choice`: the varied values. `left_out`: knobs of the file that the varied policy or
    optimizer does not have.
    """

    name: str
    choice: tuple[str, ...]
    experiment: Experiment
    left_out: tuple[str, ...] = ()


def vary(text: str) -> list[str]:
    """Parse ``key=v1,v2`` into overrides ``key=v1``, ``key=v2``. Commas inside TOML values do not separate.

    The key may be a section whose values are tables: ``policy={name = "sync"},{name = "k-sync", aggregate = 4}``.
    Raises SweepError.
    """
    key, equals, values = text.partition("=")
    parts = _split(values)
    tables = all(part.strip().startswith("{") for part in parts)
    if not equals or not ("." in key or tables) or not all(part.strip() for part in key.split(".")):
        raise SweepError(f"expected section.key=v1,v2,... (such as policy.max_staleness=0,1,2), got {text!r}")
    if not all(part.strip() for part in parts):
        raise SweepError(f"{text!r}: expected a value between every two commas, got none")
    found = [f"{key.strip()}={part.strip()}" for part in parts]
    if len(set(found)) != len(found):
        raise SweepError(f"{text!r}: names a value twice")
    return found


def _split(values: str) -> list[str]:
    """Split at the commas outside TOML arrays, tables and strings."""
    pieces, parts = values.split(","), list[str]()
    for piece in pieces:
        # An open bracket, brace or quote continues behind the comma.
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
    """Return every experiment, seeds innermost. Raises SweepError and ExperimentError, before anything runs.

    Seeds count from the experiment's own. With the same seed, workers see the same data in the same order under every
    policy. Where the name of a policy or optimizer varies, knobs of the file that it does not have are left out.
    """
    axes = [vary(text) for text in varied]
    base = Experiment.load(path, overrides)
    found = []
    for chosen in product(*axes):
        for number in range(repeat):
            seed = base.run.seed + number
            all_overrides = (*overrides, *chosen, f"run.seed={seed}")
            name = cell_name([*chosen, f"run.seed={seed}"])
            experiment, left_out = _fitted(Experiment.load(path, all_overrides), chosen, all_overrides)
            _check_policy(experiment)
            found.append(Cell(name, chosen, experiment, left_out))
    return found


def _fitted(
    experiment: Experiment, chosen: Sequence[str], overrides: Sequence[str]
) -> tuple[Experiment, tuple[str, ...]]:
    """Leave out what a varied policy or optimizer does not have, and return the names. What an override sets stays."""
    varied, said = _keys(chosen), _keys(overrides)
    left_out = list[str]()
    for section, known in _KNOBS.items():
        table = getattr(experiment, section)
        own = known.get(table.name)
        if f"{section}.name" not in varied or own is None:
            continue
        foreign = [knob for knob in table.model_extra if knob not in own and f"{section}.{knob}" not in said]
        kept = {key: value for key, value in table.model_dump().items() if key not in foreign}
        experiment = experiment.model_copy(update={section: type(table).model_validate(kept)})
        left_out += [f"{section}.{knob}" for knob in foreign]
    return experiment, tuple(left_out)


def _keys(overrides: Sequence[str]) -> set[str]:
    return {override.partition("=")[0].strip() for override in overrides}


# By section and name, the knobs that it has.
_KNOBS: Mapping[str, Mapping[str, frozenset[str]]] = {
    "policy": {name: frozenset(knob.name for knob in knobs_of(spec)) for name, spec in BUILTIN.items()},
    "optimizer": {name: frozenset(knob.name for knob in describe(name).knobs) for name in optimizers()},
}


def left_out_text(cells: Sequence[Cell]) -> str:
    """Say in one line which knobs of the file were left out of which choices; empty if none was."""
    found: dict[str, list[str]] = {}
    for cell in cells:
        # The name of the policy or optimizer stands in the choice.
        names = [
            text
            for text in cell.choice
            if text.partition("=")[0].strip() in ("policy.name", "optimizer.name")
        ]
        for knob in cell.left_out:
            of = next(name.partition("=")[2] for name in names if name.startswith(knob.partition(".")[0]))
            if of not in found.setdefault(knob, []):
                found[knob].append(of)
    parts = [f"{knob} (not a knob of {', '.join(names)})" for knob, names in found.items()]
    return f"left out: {'; '.join(parts)}" if parts else ""


def _check_policy(experiment: Experiment) -> None:
    """Raise ExperimentError unless a built-in policy takes its knobs. A user's own policy is imported by the engine."""
    policy, cluster = experiment.policy, experiment.cluster
    if ":" in policy.name:
        return
    try:
        build_policy(policy.name, policy.knobs, cluster.workers, cluster.parts)
    except PolicyError as error:
        raise ExperimentError(str(error)) from error


def cell_name(settings: Sequence[str]) -> str:
    """Return ``max_staleness=2,seed=1``, with only characters that every file system accepts."""
    pairs = (setting.partition("=") for setting in settings)
    text = ",".join(_part(key.rpartition(".")[2], parse_value(value), value) for key, _, value in pairs)
    return "".join(letter if letter.isalnum() or letter in "=,._-+" else "_" for letter in text)


def _part(key: str, value: object, text: str) -> str:
    """Return ``key=value``; for ``policy={name = "k-sync", aggregate = 4}`` return ``k-sync,aggregate=4``."""
    if not isinstance(value, dict) or "name" not in value:
        return f"{key}={text}"
    rest = [f"{name}={inner}" for name, inner in value.items() if name != "name"]
    return ",".join([str(value["name"]), *rest])


@dataclass(frozen=True, slots=True)
class CellOutcome:
    """The result of a cell. `kept`: its run was finished before; then `code` is 0."""

    cell: Cell
    folder: Path
    kept: bool
    code: int
    reason: str = ""


def sweep(
    path: Path,
    cells: Sequence[Cell],
    out: Path,
    report: Callable[[CellOutcome], None],
    trainers: SharedTrainers | None = None,
) -> list[Run]:
    """Run the cells, and return the runs with a summary, in order. `report` is called after each cell.

    A complete run folder of the same experiment is kept; a partial one is made again. An interruption ends the sweep.
    `trainers`: of simulated cells that have the same job. Raises RunError if a finished folder holds another
    experiment, and EngineError if the engine is not available.
    """
    runs = []
    for cell in cells:
        outcome = _one(path, cell, out / cell.name, trainers)
        report(outcome)
        if outcome.code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED):
            break
        if (outcome.folder / SUMMARY).is_file():
            runs.append(Run(outcome.folder))
    return runs


def _one(path: Path, cell: Cell, folder: Path, trainers: SharedTrainers | None) -> CellOutcome:
    if finished(folder, cell):
        return CellOutcome(cell, folder, True, ExitCode.OK)
    experiment = cell.experiment
    if engine_named(experiment.run.engine).make is None:
        done: FinishedRun = run_simulated(experiment, out=folder, force=True, quiet=True, trainers=trainers)
    else:
        experiment = checked(with_job(experiment, path), path)
        launcher = launcher_for(experiment, EngineOptions(), Path.cwd())
        done = run_real(experiment, Quiet(), launcher, out=folder, force=True)
    verdict = done.result.verdict
    return CellOutcome(cell, folder, False, int(verdict.code), verdict.reason)


def finished(folder: Path, cell: Cell) -> bool:
    """Return True if the folder holds the cell's finished run. Raises RunError if it holds another experiment's."""
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
