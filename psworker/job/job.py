"""`Job`: a model, its data and its loss, as a user writes them in one small Python module.

    class Digits(Job):
        hidden: int = 64                                    # an option: [job.options] hidden = 128
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

        def model(self): ...                                # any Keras 3 model, or tf.Variables
        def dataset(self, worker_index, worker_count, seed): ...
        def evaluate(self, model): return {"accuracy": ...}

This module imports no TensorFlow; the job's own module does.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from pswire.nearest import did_you_mean, nearest
from psworker.job.errors import JobError, blame, import_job_module, split_target
from psworker.work import WorkUnits

_ABSENT = object()


def declared(cls: type, base: type) -> dict[str, object]:
    """Return the default of every public annotated attribute below `base` by name; `_ABSENT` without one."""
    found: dict[str, object] = {}
    for part in reversed(cls.__mro__):
        if part in base.__mro__:
            continue
        for name, annotation in part.__dict__.get("__annotations__", {}).items():
            if not name.startswith("_") and "ClassVar" not in str(annotation):
                found[name] = getattr(cls, name, _ABSENT)
    return found


def checked(cls: type, base: type, options: Mapping[str, object]) -> dict[str, object]:
    """Return `options` with every value converted to its default's type.

    Raises JobError for an unknown name (and names the nearest) and for a value of another type.
    """
    known = declared(cls, base)
    for name in options:
        if name not in known:
            raise JobError(unknown_option(cls.__name__, name, list(known)))
    return {name: _fit(cls, name, known[name], value) for name, value in options.items()}


def require_all(cls: type, base: type, options: Mapping[str, object]) -> None:
    """Raise JobError if an option without a default is not among `options`."""
    for name, default in declared(cls, base).items():
        if default is _ABSENT and name not in options:
            raise JobError(f"job {cls.__name__} needs the option {name!r}: set it under [job.options]")


def unknown_option(job: str, name: str, known: list[str]) -> str:
    """Return the message for an option that a job does not have."""
    return f"job {job} has no option {name!r}{did_you_mean(name, known)}"


def _fit(cls: type, name: str, default: object, value: object) -> object:
    """Return `value`, converted where the default is a float or a tuple."""
    if default is _ABSENT or default is None:
        return value
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(default, float) and number:
        return float(value)  # type: ignore[arg-type]
    if isinstance(default, tuple) and isinstance(value, list):
        return tuple(value)
    same_kind = isinstance(value, bool) == isinstance(default, bool)
    if isinstance(value, type(default)) and same_kind:
        return value
    expected, got = type(default).__name__, type(value).__name__
    raise JobError(f"option {name!r} of job {cls.__name__}: expected {expected}, got {got} {value!r}")


__all__ = ["Job", "JobError", "load_job"]


class Job(ABC):
    """A model, its data and its loss.

    Public annotated attributes of a subclass are its options: `name: type = default`. A value is checked against its
    default's type; an option without a default must be given. Raises JobError for options that do not fit.
    """

    #: The quantity to minimise: anything that Keras' `compile` takes: a Keras loss, its name, a function of (y_true,
    #: y_pred), or a list or dict of these for several outputs, for a Keras model and batches ``(x, y)`` or ``(x, y,
    #: sample_weight)``; or, on TensorFlow, a method ``loss(self, model, batch)`` that returns a scalar tensor, the
    #: batch's mean loss. A Keras model's `losses` (regularisers) are added. None: `model` returns a compiled model,
    #: which is trained as compiled.
    loss: ClassVar[Any] = None

    #: The data as work units, which the coordinator deals to workers on demand: a `psworker.WorkUnits`, or a property
    #: that returns one. `dataset` is then ``dataset(self, unit)``, and returns the batches of a `psworker.Unit`. None:
    #: `dataset` returns each worker's own part.
    work: ClassVar[WorkUnits | None] = None

    #: The metrics of the default `evaluate` beside the loss, as in Keras' `compile`.
    metrics: ClassVar[Any] = ()

    #: The Keras optimizer for the servers, which refuse the worker if they run another. Clipping and accumulation are
    #: done in the worker. None: any optimizer.
    optimizer: ClassVar[Any] = None

    def __init__(self, **options: object) -> None:
        require_all(type(self), Job, options)
        self.configure(**options)

    def configure(self, **options: object) -> None:
        """Set options by name; those not named keep their values."""
        for name, value in checked(type(self), Job, options).items():
            setattr(self, name, value)

    @property
    def options(self) -> dict[str, object]:
        """All options of this job with their present values."""
        return {name: getattr(self, name) for name in declared(type(self), Job)}

    @abstractmethod
    def model(self) -> Any:
        """Build the model: a Keras 3 model, or, with a method `loss`, a `tf.Module` or any list, tuple, dict or object
        that holds `tf.Variable`s. Called once per worker, with the same random seed in each."""

    @abstractmethod
    def dataset(self, worker_index: int, worker_count: int, seed: int) -> Any:
        """Return this worker's part of the training data, as batches. In a job with `work`: ``dataset(self, unit)``
        returns the batches of one work unit.

        A `tf.data.Dataset`, any iterable of batches, or a function of the epoch
        (0, 1, ...) that returns one. A batch is an array or a tuple or dict of
        arrays; the first axis counts samples and may differ from batch to batch.
        """

    def gradients(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        """Return what to push in place of `gradients`: one float32 tensor per variable, of the same shapes.

        Called in the step, traced where the backend traces it, after accumulation and before an optimizer's clipping.
        `variables`: the trained ones, in the same order: a Keras model's own, else `tf.Variable`s.
        """
        return gradients

    def heldout(self) -> Any:
        """Return the data for the default `evaluate`: arrays ``(x, y)``, or an iterable of such batches."""
        return None

    def evaluate(self, model: Any) -> dict[str, float] | None:
        """Return metrics of the trained model, by name. None: `loss` and `metrics` on `heldout()`, if any."""
        return None


#: The required parts of a job, as messages name them.
_REQUIRED = {
    "model": "model(self)",
    "dataset": "dataset(self, worker_index, worker_count, seed)",
    "loss": "loss(self, model, batch), or loss = a Keras loss, or a compiled model",
}


def load_job(target: str, options: Mapping[str, object] | None = None) -> Job:
    """Return the job named by `target`, with `options` set.

    `target` is "package.module:attribute" or "path/to/file.py:attribute"; the
    attribute is a Job subclass, a Job, or a function that takes the options as
    keyword arguments and returns a Job.

    Raises JobError for a missing module or one that raises (then with the user's traceback in `details`), a missing
    attribute (and names the nearest), a missing method, and an option that does not fit.
    """
    place, attribute = split_target(target)
    module = import_job_module(place)
    found = _attribute(module, place, attribute)
    given = dict(options or {})
    if isinstance(found, type) and issubclass(found, Job):
        _require_methods(found, target)
        with blame(f"making job {target!r}"):
            return found(**given)
    if isinstance(found, Job):
        _require_methods(type(found), target)
        found.configure(**given)
        return found
    if callable(found):
        return _from_factory(found, target, given)
    raise JobError(_not_a_job(target, found))


def _attribute(module: ModuleType, place: str, name: str) -> Any:
    if hasattr(module, name):
        return getattr(module, name)
    jobs = [known for known, value in vars(module).items() if _looks_like_a_job(value, module)]
    near = nearest(name, jobs) or nearest(
        name, [known for known in vars(module) if not known.startswith("_")]
    )
    hint = f'; did you mean "{near}"?' if near else ""
    known = f" (jobs in it: {', '.join(jobs)})" if jobs else " (there is no Job in it)"
    raise JobError(f"the module {place!r} has no attribute {name!r}{hint}{known}")


def _looks_like_a_job(value: object, module: ModuleType) -> bool:
    if isinstance(value, type):
        return issubclass(value, Job) and value.__module__ == module.__name__
    return isinstance(value, Job)


def _require_methods(cls: type[Job], target: str) -> None:
    missing = set(getattr(cls, "__abstractmethods__", ()))
    if missing:
        # A job without a loss may have a compiled model, which shows when the model is made.
        missing |= {"loss"} if cls.loss is None else set()
        wanted = "; ".join(text for name, text in _REQUIRED.items() if name in missing)
        raise JobError(f"job {target!r} is not complete: class {cls.__name__} must define {wanted}")


def _from_factory(factory: Any, target: str, options: dict[str, object]) -> Job:
    """Call the user's function with the options that it declares."""
    parameters = inspect.signature(factory).parameters
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    for name in options:
        if name not in parameters and not open_ended:
            raise JobError(unknown_option(repr(target), name, list(parameters)))
    with blame(f"job factory {target!r}"):
        made = factory(**options)
    if not isinstance(made, Job):
        raise JobError(_not_a_job(target, made))
    _require_methods(type(made), target)
    return made


def _not_a_job(target: str, got: object) -> str:
    wanted = "a psworker.Job, a subclass of it, or a function that returns one"
    return f"{target!r} must be {wanted}; got {type(got).__name__}"


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """The servers' optimizer at a version.

    `config`: the job's [optimizer], with all knobs. `slots`: for each slot, in the rule's order, an array for each
    variable by name; None: they are not known. `rate`: the learning rate that was set last; None: that of `config`.
    """

    config: Mapping[str, object]
    slots: Sequence[Mapping[str, np.ndarray[Any, Any]]] | None = field(repr=False)
    version: int
    rate: float | None = None
