"""A job's model as a compiled Keras model: as the user compiled it, or by the job's loss, metrics and optimizer.

Everything that a model was compiled with is used, or refused.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Mapping
from typing import Any

import keras

from pswire.nearest import did_you_mean
from psworker.backends.keras.step import backend, own_train_step
from psworker.job import Job
from psworker.job.errors import JobError

# What Keras' compile takes beside the names that it looks up.
_METRIC_WORDS = ("accuracy", "acc", "crossentropy", "ce")
# Models that were compiled here, and not by the user.
_COMPILED_HERE: weakref.WeakSet[Any] = weakref.WeakSet()


def compiled(job: Job, model: Any) -> tuple[Any, Any]:
    """Return the compiled Keras model whose steps train the job, and the optimizer that job or model name, or None.

    That is `model` itself, except under a loss that is a function of model and batch. Raises JobError where job and
    model contradict each other, and ModelError where the backend needs another loss.
    """
    if by_user(model):
        _check_compiled(job, model)
        if model._compile_config.config.get("jit_compile") is not True and _on_tensorflow():
            # Under "auto" XLA would compile anew for each size of a batch.
            model.jit_compile = False
        step, named = model, model.optimizer
    else:
        step = _compiled_here(job, model)
        named = None if job.optimizer is None else step.optimizer
    _check_optimizer(job, named)
    if own_train_step(step) and not step.optimizer.built and step is model:
        step.optimizer.build(step.trainable_variables)
    return step, named


def by_user(model: Any) -> bool:
    """Return whether the user has compiled the model."""
    return isinstance(model, keras.Model) and bool(model.compiled) and model not in _COMPILED_HERE


def compile_by(job: Job, model: Any, optimizer: Any) -> None:
    """Compile a Keras model by the job's loss and metrics, with this optimizer."""
    loss, metrics = keras_loss(job), _metrics(job)
    jit = False if _on_tensorflow() else "auto"
    model.compile(optimizer=optimizer, loss=loss, metrics=metrics, jit_compile=jit, auto_scale_loss=False)
    _COMPILED_HERE.add(model)


def _compiled_here(job: Job, model: Any) -> Any:
    name, loss = type(job).__name__, keras_loss(job)
    if job.loss is None:
        raise JobError(
            f"job {name} has no loss: define loss(self, model, batch), loss = a Keras loss, or compile the model "
            "in model()"
        )
    _check_names("metric", _metrics(job))
    named = _optimizer(job) or "sgd"
    if loss is not None:
        if not isinstance(model, keras.Model):
            raise JobError(
                f"job {name} has a Keras loss, which needs a keras.Model, but model() returned "
                f"{type(model).__name__}: write a method loss(self, model, batch)"
            )
        _check_names("loss", loss)
        compile_by(job, model, named)
        return model
    if not callable(job.loss):
        raise JobError(
            f"the loss of job {name} must be a method loss(self, model, batch), a Keras loss, the "
            f"name of one, or a function of y_true and y_pred; got {type(job.loss).__name__} {job.loss!r}"
        )
    if inspect.ismethod(job.loss) and len(_needed(job.loss)) == 1:
        raise JobError(f"the loss of job {name} must be a method loss(self, model, batch)")
    if isinstance(model, keras.Model):
        if own_train_step(model):
            raise JobError(
                f"model() of job {name} returned a {type(model).__name__} with a train_step of its own, and the job "
                "has loss(self, model, batch): leave one of the two out (for the train_step, compile the model)"
            )
        if job.metrics:
            compile_by(job, model, named)
    made = backend().bare(job.loss, model, name)
    made.compile(optimizer=named, jit_compile=False, auto_scale_loss=False)
    return made


def keras_loss(job: Job) -> Any:
    """Return the job's loss as `compile(loss=...)` takes it; None where it is a function of model and batch.

    A name, a Keras loss, a function of (y_true, y_pred), or a list or dict of these, one for each output.
    """
    named = job.loss
    if isinstance(named, str | keras.losses.Loss | dict | list | tuple):
        return named
    if not callable(named):
        return None
    if not inspect.ismethod(named):
        # Put on the instance: loss(model, batch), or a function of targets and predictions.
        return None if _needed(named)[:1] == ["model"] else named
    needed = _needed(named.__func__)
    if needed[:1] == ["self"]:
        return None
    # A plain function that was made an attribute of the class, such as keras.losses.binary_crossentropy.
    return named.__func__ if len(needed) == 2 else None


def _needed(function: Any) -> list[str]:
    """Names of the arguments that have to be given; none for what does not tell its arguments."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.default is inspect.Parameter.empty and p.kind in plain]


def _check_names(kind: str, named: Any) -> None:
    """Raise JobError for a name, however deep in lists and dicts, under which Keras knows no loss or metric."""
    known = keras.losses if kind == "loss" else keras.metrics
    for name in keras.tree.flatten(named):
        if not isinstance(name, str) or (kind == "metric" and name in _METRIC_WORDS):
            continue
        try:
            known.get(name)
        except ValueError as error:
            names = [word for word in dir(known) if not word.startswith("_")]
            hint = did_you_mean(name, [*names, *_METRIC_WORDS] if kind == "metric" else names)
            raise JobError(f"Keras knows no {kind} named {name!r}{hint}") from error


def _check_compiled(job: Job, model: Any) -> None:
    for what, given in (("loss", job.loss), ("metrics", job.metrics), ("optimizer", job.optimizer)):
        if given is not None and given != ():
            raise JobError(
                f"model() of job {type(job).__name__} returned a compiled model, and the job has {what} of its own: "
                "leave one of the two out (the model is trained as it was compiled; without compile() the job's "
                f"{what} counts)"
            )
    # Keras looks names up when it sees the first batch.
    _check_names("loss", model.loss)
    _check_names("metric", getattr(model._compile_metrics, "_user_metrics", None))


def _check_optimizer(job: Job, optimizer: Any) -> None:
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise JobError(
            f"the optimizer of job {type(job).__name__} scales its loss by a number that changes, which a job does not "
            "keep: use loss_scale_factor=1024 (and compile(auto_scale_loss=False)), mixed_bfloat16, which needs no "
            "scaling, or model.fit with psworker.keras.distribute"
        )
    if optimizer is not None and optimizer.use_ema:
        raise JobError(
            f"the optimizer of job {type(job).__name__} averages weights (use_ema), and the weights of a job are the "
            "servers': leave it out, or use model.fit with psworker.keras.distribute"
        )


def _metrics(job: Job) -> Any:
    """Return the job's metrics as Keras' `compile` takes them: a list, or a dict by output."""
    given = job.metrics
    if isinstance(given, Mapping):
        return dict(given)
    return list(given) if isinstance(given, list | tuple) else [given]


def _optimizer(job: Job) -> Any:
    try:
        return None if job.optimizer is None else keras.optimizers.get(job.optimizer)
    except ValueError as error:
        raise JobError(f"Keras knows no optimizer {job.optimizer!r}, of job {type(job).__name__}") from error


def _on_tensorflow() -> bool:
    return bool(keras.backend.backend() == "tensorflow")
