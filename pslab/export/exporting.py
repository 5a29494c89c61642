"""From a run folder or a checkpoint to a file: weights, and the model where the format holds one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pslab.export import target
from pslab.export.source import (
    Weights,
    run_of_checkpoint,
    weights_of,
    weights_of_checkpoint,
    with_optimizer,
)
from pslab.replay.execution import Replayed
from pslab.runs.folder import EXPERIMENT, Run, RunError
from pswire.config.experiment import parse_experiment
from psworker.trainers import load_trainer


def exported(
    run: Run,
    path: Path,
    version: int | None = None,
    watch: Callable[[Replayed], None] | None = None,
    job: str | None = None,
) -> tuple[Weights, str]:
    """Write `version`, or the last one, to `path`, which `target.check` has looked at; what was written, and what the
    file has of the optimizer, a phrase.

    `job`: `FILE:CLASS` of the model, instead of the one that the run's experiment names.

    Raises RunError, ExperimentError, DataError, OtherWeightsError, and JobError.
    """
    found = weights_of(run, version, watch)
    if target.holds_optimizer(path) and found.optimizer is None:
        found = with_optimizer(run, found)
    model = _model(run, job) if target.needs_model(path) else None
    return found, target.write(path, found.arrays, model, found.optimizer)


def exported_checkpoint(folder: Path, path: Path, job: str | None = None) -> tuple[Weights, str]:
    """As `exported`, from a checkpoint's folder: nothing is computed."""
    model = None
    if target.needs_model(path):
        model = _model(None if job else run_of_checkpoint(folder), job)
    found = weights_of_checkpoint(folder, optimizer=target.holds_optimizer(path))
    return found, target.write(path, found.arrays, model, found.optimizer)


def _model(run: Run | None, job: str | None) -> Any:
    if run is None or job is not None:
        return load_trainer(parse_experiment({"job": {"module": job}}), "cpu")
    if not (run.path / EXPERIMENT).is_file():
        raise RunError(
            f"{run.path / EXPERIMENT}: is missing, which names the job and so the model: name it by --job FILE:CLASS, "
            "or export weights.safetensors"
        )
    if not run.experiment.job.module:
        raise RunError(
            f"{run.path / EXPERIMENT}: names no [job]: there is no model to write; export weights.safetensors instead"
        )
    return load_trainer(run.experiment, "cpu")
