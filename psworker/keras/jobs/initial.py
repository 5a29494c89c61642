"""Weights that a job begins with, from a file: a Keras model, or arrays by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import keras
import numpy as np

from psworker.backends.keras.variables import KerasModel, KerasVariables, collect, read
from psworker.job.errors import JobError, blame

# Names of variables in an error.
MOST_NAMES = 3


def load(path: Path, model: KerasModel) -> None:
    """Load the file's values into a model. It must hold exactly its variables, by name, as floats of their shapes.

    A .keras file is read as Keras reads it, without its optimizer; of a .safetensors file the names are
    those of a run's weights.safetensors. Raises JobError, with nothing changed.
    """
    if not path.is_file():
        raise JobError(f"{path}: expected a file with the initial weights, and there is none")
    with blame(f"reading {path}"):
        found = _of_keras(path) if path.suffix == ".keras" else _by_name(path)
    problem = _difference(found, model.found)
    if problem is not None:
        raise JobError(f"{path}: does not hold this job's model: {problem}")
    model.put([found[spec.name].astype(np.float32) for spec in model.specs])


def _of_keras(path: Path) -> Mapping[str, np.ndarray]:
    saved = collect(keras.models.load_model(path, compile=False))
    pairs = zip(saved.specs, saved.variables, strict=True)
    return {spec.name: read(variable) for spec, variable in pairs}


def _by_name(path: Path) -> Mapping[str, np.ndarray]:
    from safetensors.numpy import load_file

    found: Mapping[str, np.ndarray] = load_file(path)
    return found


def _difference(found: Mapping[str, np.ndarray], variables: KerasVariables) -> str | None:
    expected = {spec.name: spec.shape for spec in variables.specs}
    for name, shape in expected.items():
        values = found.get(name)
        if values is None:
            others = ", ".join(sorted(found)[:MOST_NAMES]) or "none"
            dots = ", ..." if len(found) > MOST_NAMES else ""
            return f"it has no variable {name!r}; it has {len(found)}: {others}{dots}"
        if values.shape != shape:
            return f"{name!r}: expected the shape {shape}, got {values.shape}"
        # bfloat16 is none of numpy's own.
        if not (np.issubdtype(values.dtype, np.floating) or values.dtype.name == "bfloat16"):
            return f"{name!r}: expected floating numbers, got {values.dtype}"
        if not np.isfinite(values.astype(np.float32)).all():
            return f"{name!r}: expected finite numbers, got NaN or infinity"
    more = sorted(found.keys() - expected.keys())
    return f"it has {more[0]!r}, which the model has not" if more else None
