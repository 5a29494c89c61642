"""The file or folder that weights are written to. Its name says the format. It appears whole or not at all."""

import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from pslab.runs.folder import RunError
from psserver import weights_file
from psworker.job.optimizer import OptimizerState

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
