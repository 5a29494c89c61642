"""A trained model as a file that Keras or TensorFlow loads without this project."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from psworker.job import Job
from psworker.job.errors import JobError, blame
from psworker.tensorflow.objectives.training import Training
from psworker.tensorflow.variables import ModelVariables


def save_model(
    job: Job, model: Any, variables: ModelVariables, weights: Mapping[str, np.ndarray], path: Path
) -> None:
    """Set the variables by name and write the model: `.keras`, or else a SavedModel folder.

    A Keras model is saved as it was compiled, or with the job's Keras loss and metrics, so that `evaluate` works on
    what is loaded. Raises JobError for weights of another model and for what cannot be written in that format.
    """
    variables.assign(_in_order(job, variables, weights))
    name = type(job).__name__
    Training(job, model)
    with blame(f"writing the model of job {name}"):
        if path.suffix == ".keras":
            if not isinstance(model, keras.Model):
                raise JobError(f"{_no_model(name, model, 'Keras model')}; export weights.safetensors instead")
            model.save(path)
        elif isinstance(model, keras.Model):
            model.export(path, verbose=False)
        elif isinstance(model, tf.Module):
            tf.saved_model.save(model, str(path))
        else:
            text = _no_model(name, model, "Keras model or tf.Module")
            raise JobError(f"{text}; export weights.safetensors instead")


def _no_model(name: str, model: Any, expected: str) -> str:
    return f"model() of job {name} returned {type(model).__name__}, expected a {expected}"


def _in_order(job: Job, variables: ModelVariables, weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    specs = {spec.name: spec.shape for spec in variables.specs}
    given = {name: values.shape for name, values in weights.items()}
    if specs != given:
        odd = sorted(name for name in specs.keys() | given.keys() if specs.get(name) != given.get(name))
        raise JobError(
            f"these are no weights of job {type(job).__name__}: {odd[0]!r} has the shape {specs.get(odd[0])} in the "
            f"model, and {given.get(odd[0])} in the weights: was the job, or one of its options, changed?"
        )
    return [weights[spec.name] for spec in variables.specs]
