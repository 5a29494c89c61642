"""From a run folder or a checkpoint to a file: weights, and the model where the format holds one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pslab.export import target
from pslab.export.source import Weights, run_of_checkpoint, weights_of, weights_of_checkpoint
from pslab.replay.execution import Replayed
from pslab.runs.folder import EXPERIMENT, Run, RunError
from psworker.trainers import load_trainer


def exported(
    run: Run, path: Path, version: int | None = None, watch: Callable[[Replayed], None] | None = None
) -> Weights:
    """Write `version`, or the last one, to `path`, which `target.check` has looked at; what was written.

    Raises RunError, ExperimentError, DataError, OtherWeightsError, and JobError.
    """
    found = weights_of(run, version, watch)
    target.write(path, found.arrays, _model(run) if target.needs_model(path) else None)
    return found


def exported_checkpoint(folder: Path, path: Path) -> Weights:
    """As `exported`, from a checkpoint's folder: nothing is computed."""
    model = _model(run_of_checkpoint(folder)) if target.needs_model(path) else None
    found = weights_of_checkpoint(folder)
    target.write(path, found.arrays, model)
    return found


def _model(run: Run) -> Any:
    if not run.experiment.job.module:
        raise RunError(
            f"{run.path / EXPERIMENT}: names no [job]: there is no model to write; export weights.safetensors instead"
        )
    return load_trainer(run.experiment, "cpu")
