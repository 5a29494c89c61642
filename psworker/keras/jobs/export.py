"""A trained model as a file that Keras or TensorFlow loads without this project."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import keras
import numpy as np

from pswire.model.variables import WholeTables
from psworker.backends import ModelError
from psworker.backends.keras.step import backend, unwrapped
from psworker.backends.keras.variables import KerasModel
from psworker.job import Job
from psworker.job.errors import JobError, blame
from psworker.job.job import OptimizerState
from psworker.keras.exporting import export
from psworker.keras.jobs.compiling import by_user, compile_by
from psworker.keras.slots import assign_slots
from psworker.keras.translate import keras_optimizer

NO_TABLES: Final[WholeTables] = {}


def save_model(
    job: Job,
    model: Any,
    variables: KerasModel,
    named: Any,
    weights: Mapping[str, np.ndarray],
    path: Path,
    optimizer: OptimizerState | None = None,
    tables: WholeTables = NO_TABLES,
) -> str:
    """Set the variables by name and write the model: `.keras`, or else a SavedModel folder. Layers that look rows up in
    `tables` become `IntegerLookup` and `Embedding`. `named`: the optimizer that job or model name, or None.

    A Keras model is saved as it was compiled, or with the job's Keras loss and metrics, so that `evaluate` works on
    what is loaded; a `.keras` file with the optimizer, too, so that `fit` goes on. Returns what the file has of that, a
    phrase. Raises JobError for weights of another model and for what cannot be written in that format.
    """
    variables.put(_in_order(job, variables, weights))
    name = type(job).__name__
    note = "without the optimizer's state, for which the format has no place"
    if tables:
        model = _with_rows(name, model, tables)
        note = "with its tables as Embedding layers, without the optimizer's state"
    elif path.suffix == ".keras" and isinstance(model, keras.Model):
        note = _give_optimizer(job, model, variables, named, optimizer)
    with blame(f"writing the model of job {name}"):
        if path.suffix == ".keras":
            if not isinstance(model, keras.Model):
                raise JobError(f"{_no_model(name, model, 'Keras model')}; export weights.safetensors instead")
            model.save(path)
        elif isinstance(model, keras.Model):
            model.export(path, verbose=False)
        elif not backend().save(model, path):
            text = _no_model(name, model, "Keras model or tf.Module")
            raise JobError(f"{text}; export weights.safetensors instead")
    return note


def _give_optimizer(
    job: Job, model: Any, variables: KerasModel, named: Any, state: OptimizerState | None
) -> str:
    """Compile the model with the run's optimizer, in its state. Returns what `save_model` does."""
    if state is None:
        return "without the optimizer's state, which is not known of this version"
    optimizer = keras_optimizer(state.config) if named is None else named
    if optimizer is None:
        return f"without the optimizer's state: Keras has no {state.config['name']}"
    if not by_user(model):
        compile_by(job, model, optimizer)
    optimizer = model.optimizer
    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    pairs = zip(variables.found.variables, variables.specs, strict=True)
    names = {id(variable): spec.name for variable, spec in pairs}
    trained = {id(variable): names[id(variable)] for variable in model.trainable_variables}
    scheduled = callable(unwrapped(optimizer)._learning_rate)
    if state.slots is not None:
        slots = [{key: slot[name] for key, name in trained.items()} for slot in state.slots]
        assign_slots(optimizer, slots, state.version)
    elif scheduled:
        # The rate goes on. Without a schedule the count stays 0, as it belongs to slots that are 0.
        every = unwrapped(optimizer).gradient_accumulation_steps or 1
        unwrapped(optimizer)._iterations.assign(state.version * every)
    if state.rate is not None and not scheduled:
        optimizer.learning_rate = state.rate
    if state.slots is None:
        return (
            f"compiled with the run's {state.config['name']}, without the optimizer's state, which begins anew: a "
            "checkpoint has it (ps-lab run --checkpoint-every), and ps-lab export --version writes it"
        )
    if state.config.get("exclude_from_weight_decay"):
        return "with the optimizer's state, but exclude_from_weight_decay, which Keras' files do not keep"
    return "with the optimizer's state"


def _with_rows(name: str, model: Any, tables: WholeTables) -> Any:
    """Make a plain Keras model with the tables' rows in it."""
    if not isinstance(model, keras.Model):
        raise JobError(f"{_no_model(name, model, 'Keras model')}; export weights.safetensors instead")
    try:
        return export(model, tables.__getitem__)
    except ModelError as error:
        raise JobError(f"the model of job {name}: {error}; or export weights.safetensors") from error


def _no_model(name: str, model: Any, expected: str) -> str:
    return f"model() of job {name} returned {type(model).__name__}, expected a {expected}"


def _in_order(job: Job, variables: KerasModel, weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    specs = {spec.name: spec.shape for spec in variables.specs}
    given = {name: values.shape for name, values in weights.items()}
    if specs != given:
        odd = sorted(name for name in specs.keys() | given.keys() if specs.get(name) != given.get(name))
        raise JobError(
            f"these are no weights of job {type(job).__name__}: {odd[0]!r} has the shape {specs.get(odd[0])} in the "
            f"model, and {given.get(odd[0])} in the weights: was the job, or one of its options, changed?"
        )
    return [weights[spec.name] for spec in variables.specs]
