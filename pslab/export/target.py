"""From a run folder or a checkpoint to a file or folder: weights, and the model where the format holds one.

The name says the format. It appears whole or not at all."""

import shutil
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from pslab.export.source import (
    Weights,
    run_of_checkpoint,
    weights_of,
    weights_of_checkpoint,
    with_optimizer,
)
from pslab.replay.execution import Replayed
from pslab.runs.folder import EXPERIMENT, Run, RunError
from psserver import weights_file
from pswire.config.experiment import parse_experiment
from psworker.job.job import OptimizerState
from psworker.trainers import load_trainer

Floats = NDArray[np.float32]

NPZ, SAFETENSORS, KERAS, SAVED_MODEL = ".npz", ".safetensors", ".keras", ""
FORMATS = (KERAS, SAFETENSORS, NPZ, SAVED_MODEL)


@runtime_checkable
class ModelWriter(Protocol):
    """What builds a job's model: `psworker.tensorflow.Trainer`."""

    def save_model(
        self, weights: Mapping[str, Floats], path: Path, optimizer: OptimizerState | None = None
    ) -> str:
        """Write the model with these weights; a path that ends in .keras is a Keras file, another a SavedModel. Returns
        what the file has of the optimizer, a phrase."""
        ...


def check(path: Path) -> None:
    """Before anything is computed. Raises RunError for a name that says no format, or is taken."""
    if path.suffix not in FORMATS:
        raise RunError(
            f"{path}: expected a name that ends in .keras, .safetensors or .npz, or one without an ending for a "
            f"SavedModel, got {path.suffix}"
        )
    if path.exists():
        raise RunError(f"{path}: exists; nothing is overwritten: choose another name, or remove it")


def needs_model(path: Path) -> bool:
    """The format holds the model's code, too, which comes from the job."""
    return path.suffix in (KERAS, SAVED_MODEL)


def holds_optimizer(path: Path) -> bool:
    """The format holds what an optimizer remembers."""
    return path.suffix == KERAS


def write(
    path: Path, weights: Mapping[str, Floats], model: ModelWriter | None, optimizer: OptimizerState | None
) -> str:
    """`model` is there where the format needs one. Returns what the file has of the optimizer, a phrase. Raises
    RunError, with nothing left behind, and JobError."""
    told = "without the optimizer's state, for which the format has no place"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=".export-", dir=path.parent))
        try:
            part = aside / path.name
            if model is not None:
                told = model.save_model(weights, part, optimizer)
            elif path.suffix == SAFETENSORS:
                weights_file.save(part, weights)
            else:
                _write_npz(part, weights)
            part.rename(path)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror or error}") from error
    return told


def _write_npz(path: Path, weights: Mapping[str, Floats]) -> None:
    """As `numpy.savez`, which has no room for a variable called "file"."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, values in weights.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asarray(values), allow_pickle=False)


def exported(
    run: Run,
    path: Path,
    version: int | None = None,
    watch: Callable[[Replayed], None] | None = None,
    job: str | None = None,
) -> tuple[Weights, str]:
    """Write `version`, or the last one, to `path`, which `check` has looked at; what was written, and what the
    file has of the optimizer, a phrase.

    `job`: `FILE:CLASS` of the model, instead of the one that the run's experiment names.

    Raises RunError, ExperimentError, DataError, OtherWeightsError, and JobError.
    """
    found = weights_of(run, version, watch)
    if holds_optimizer(path) and found.optimizer is None:
        found = with_optimizer(run, found)
    model = _model(run, job) if needs_model(path) else None
    return found, write(path, found.arrays, model, found.optimizer)


def exported_checkpoint(folder: Path, path: Path, job: str | None = None) -> tuple[Weights, str]:
    """As `exported`, from a checkpoint's folder: nothing is computed."""
    model = None
    if needs_model(path):
        model = _model(None if job else run_of_checkpoint(folder), job)
    found = weights_of_checkpoint(folder, optimizer=holds_optimizer(path))
    return found, write(path, found.arrays, model, found.optimizer)


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
