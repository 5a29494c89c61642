"""A Keras model on any of Keras' backends: its variables, named and ordered the same way in every worker."""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Literal, Protocol

import keras
import numpy as np
from numpy.typing import NDArray

from pswire.logs.events import event
from pswire.model.plan import Plan, VariableSpec
from psworker.backends import Landing, ModelError, StepResult, infinite_state
from psworker.backends.lookups import LookedUp
from psworker.errors import Unsupported

log = logging.getLogger("ps-worker")

# What Keras calls a variable without a name.
_UNNAMED = "variable"
_SEED = "seed_generator_state"
Kind = Literal["trainable", "state"]


def stable_names(model: Any) -> dict[int, str]:
    """Name each Keras variable, by id: the layers on the way to it, without the model itself, and its own name.

    "block/dense/kernel". Numbers that Keras gave are counted from 0 again within `model`; layers that the
    user named keep their names. A layer of images with channels first has "[channels_first]" behind its name.
    """
    ways = list(_ways(model, () if isinstance(model, keras.Model) else (model,), {id(model)}))
    numbers: dict[str, set[int]] = defaultdict(set)
    for way, variable in ways:
        for layer in way:
            _count(numbers, _base(type(layer).__name__), layer.name)
        _count(numbers, _UNNAMED, variable.name)
    renamed = {
        _numbered(base, number): _numbered(base, place)
        for base, found in numbers.items()
        for place, number in enumerate(sorted(found))
    }
    names: dict[int, str] = {}
    for way, variable in ways:
        parts = [renamed.get(layer.name, layer.name) + _layout(layer) for layer in way]
        names.setdefault(id(variable), "/".join([*parts, renamed.get(variable.name, variable.name)]))
    return names


def _layout(layer: Any) -> str:
    """Tell images with channels first from others: shapes of kernels do not, and workers of one job must agree."""
    return "[channels_first]" if getattr(layer, "data_format", None) == "channels_first" else ""


def _ways(layer: Any, way: tuple[Any, ...], visited: set[int]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """(layers on the way, variable) for every variable, each layer once."""
    for variable in (*layer._trainable_variables, *layer._non_trainable_variables):
        yield way, variable
    for inner in layer._layers:
        if id(inner) not in visited:
            visited.add(id(inner))
            yield from _ways(inner, (*way, inner), visited)


def _count(numbers: dict[str, set[int]], base: str, name: str) -> None:
    given = re.fullmatch(rf"{re.escape(base)}(?:_(\d+))?", name)
    if given is not None:
        numbers[base].add(int(given[1] or 0))


def _numbered(base: str, number: int) -> str:
    return f"{base}_{number}" if number else base


def _base(kind: str) -> str:
    """Derive the name that Keras gives a layer of this class."""
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", kind))
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()


def variables_of(layer: Any) -> list[tuple[str, Any, Kind]]:
    """(name, variable, kind) of a layer or model: its trainable ones first. Metrics' variables are left out.

    Raises ModelError for a layer that is not built.
    """
    if not layer.built:
        raise ModelError(
            f"the Keras model {layer.name!r} is not built yet, so its variables are not known: "
            "begin it with keras.Input(shape), or call model.build(shape)"
        )
    names = stable_names(layer)
    kinds: tuple[tuple[Kind, Iterable[Any]], ...] = (
        ("trainable", layer.trainable_weights),
        ("state", layer.non_trainable_variables),
    )
    return [(names.get(id(each), each.path), each, kind) for kind, several in kinds for each in several]


def unique(names: list[str]) -> list[str]:
    """Return the names, with "#1", "#2", ... after the second and later of equal ones."""
    taken = set(names)
    used: set[str] = set()
    result = []
    for name in names:
        fresh, count = name, 0
        while fresh in used or (count and fresh in taken):
            count += 1
            fresh = f"{name}#{count}"
        used.add(fresh)
        result.append(fresh)
    return result


def kept_outside(model: Any, kinds: tuple[type[Any], ...] = (keras.Variable,)) -> list[tuple[str, Any]]:
    """(name, variable) of what layers keep in attributes of theirs and Keras does not list, as a stateful RNN does."""
    known = {key for each in model.variables for key in (id(each), id(native(each)))}
    found: list[tuple[str, Any]] = []
    for layer in model._flatten_layers():
        for name, value in vars(layer).items():
            for leaf in _leaves(value):
                if type(leaf).__name__ == "Generator":
                    # TensorFlow's; nothing else is asked, because a property of a user's own may raise.
                    leaf = getattr(leaf, "state", None)
                if isinstance(leaf, kinds) and not known & {id(leaf), id(native(leaf))}:
                    known |= {id(leaf), id(native(leaf))}
                    found.append((f"{layer.name}/{name}", leaf))
    return found


def warn_of_lost(model: Any, kinds: tuple[type[Any], ...] = (keras.Variable,)) -> None:
    """Warn, where a worker goes on in the middle of its data, of what only its earlier process has kept."""
    found = [*kept_outside(model, kinds), *_counters(model)] if isinstance(model, keras.Layer) else []
    layers = sorted({name.partition("/")[0] for name, _ in found})
    if layers:
        log.warning(
            "this worker goes on in the middle of its data, and what these layers keep from batch to batch begins "
            "again as the model made it, because the process that kept it has ended: %s",
            ", ".join(layers),
            extra=event("state_lost", layers=layers),
        )


def _counters(model: Any) -> list[tuple[str, Any]]:
    """(name, variable) of the integers that layers of a user's own keep; Keras' own count nothing in training."""
    return [
        (f"{layer.name}/{variable.name}", variable)
        for layer in model._flatten_layers()
        if not type(layer).__module__.startswith("keras.")
        for variable in layer._non_trainable_variables
        if variable.name != _SEED and not keras.backend.is_float_dtype(variable.dtype)
    ]


def _leaves(value: Any) -> list[Any]:
    """List a value, or what is in lists, tuples and dicts; of nothing else, which has owners of its own."""
    if isinstance(value, dict):
        value = list(value.values())
    return [leaf for each in value for leaf in _leaves(each)] if isinstance(value, list | tuple) else [value]


@dataclass(frozen=True)
class KerasVariables:
    """The variables of a model that travel, trainable ones first; `specs[i]` describes `variables[i]`."""

    specs: tuple[VariableSpec, ...]
    variables: tuple[Any, ...]  # keras.Variable
    local: tuple[Any, ...]  # those that do not travel: what is not floating, and a stateful RNN's states
    seeds: tuple[Any, ...]  # those of them that are the state of Keras' random generators
    constants: tuple[tuple[str, Any, NDArray[Any]], ...] = ()  # those that are not finite, and their values

    def check_constants(self) -> None:
        """Raise ModelError if training has changed one that was taken for a constant."""
        for name, variable, value in self.constants:
            if not np.array_equal(read(variable), value, equal_nan=True):
                raise ModelError(infinite_state(name))

    @property
    def trainable(self) -> int:
        """How many of them are trained."""
        return sum(spec.kind == "trainable" for spec in self.specs)

    @property
    def trained(self) -> tuple[Any, ...]:
        """The trainable ones."""
        return self.variables[: self.trainable]

    @property
    def state(self) -> tuple[Any, ...]:
        """The others: BatchNorm's moving averages, frozen layers."""
        return self.variables[self.trainable :]

    def values(self) -> list[NDArray[Any]]:
        """Present values as float32 arrays, in order."""
        return [np.asarray(read(variable), dtype=np.float32) for variable in self.variables]


def finite(array: NDArray[Any]) -> bool:
    """Return whether all numbers of a floating array are finite."""
    return bool(np.isfinite(array.astype(np.float32)).all())


def read(value: Any) -> NDArray[Any]:
    """Read a keras.Variable's value, an array of the backend, or anything that numpy takes, on the host."""
    if isinstance(value, keras.Variable):
        value = value.value
    elif not keras.ops.is_tensor(value):
        return np.asarray(value)
    return backend().framework.read(value)


def collect(model: Any) -> KerasVariables:
    """Collect the variables of a built Keras model or layer, on any backend.

    Floating variables travel: those that the optimizer trains as "trainable", the others as "state". Raises ModelError
    for a model that is not built, has no trainable variable, or has some of float64 or complex ones.
    """
    travels: list[tuple[str, Any, Kind]] = []
    local: list[Any] = []
    constants: list[tuple[str, Any, NDArray[Any]]] = []
    visited: set[int] = set()
    for name, variable, kind in variables_of(model):
        if id(variable) in visited:
            continue
        visited.add(id(variable))
        if variable.dtype == "float64":
            raise ModelError(
                f"variable {name!r} has dtype float64, and servers reckon in float32: expected layers of float32 "
                '(keras.config.set_floatx("float32"), dtype="float32")'
            )
        if keras.backend.is_float_dtype(variable.dtype):
            if kind == "state" and not finite(value := np.array(read(variable))):
                # A mask with -inf. Servers hold finite numbers, and every worker has made it alike.
                constants.append((name, variable, value))
                local.append(variable)
                continue
            travels.append((name, variable, kind))
        elif kind == "trainable" and variable.dtype.startswith("complex"):
            raise ModelError(f"variable {name!r} has dtype {variable.dtype}: servers train real numbers only")
        else:
            local.append(variable)
    if not travels or travels[0][2] == "state":
        raise ModelError(f"{type(model).__name__} {model.name!r} has no trainable floating variable")
    names = unique([name for name, _, _ in travels])
    specs = tuple(
        VariableSpec(name, tuple(int(size) for size in variable.shape), variable.dtype, kind)
        for name, (_, variable, kind) in zip(names, travels, strict=True)
    )
    seeds = tuple(each for each in local if each.name == _SEED)
    local += [variable for _, variable in kept_outside(model)]
    variables = tuple(each for _, each, _ in travels)
    return KerasVariables(specs, variables, tuple(local), seeds, tuple(constants))


class Framework(Protocol):
    """The operations that the variables of a Keras model need of the framework that they are made of.

    Implemented by `psworker.backends.tensorflow.arrays`, `psworker.backends.jax` and `psworker.backends.torch`.
    """

    name: str

    def traces(self, values: Sequence[Any]) -> bool:
        """Return whether the caller, who has these values, is within a function that is being traced."""

    def place(self, variable: Any, array: NDArray[Any]) -> Any:
        """Assign an array of float32 or a wire dtype, good for the time of this call only, to a keras.Variable, cast
        on its device. Returns what it holds now, as an array of the framework that nothing changes."""

    def read(self, value: Any) -> NDArray[Any]:
        """Read an array of the framework, on the host."""

    def change(self, now: Any, before: Any) -> Any:
        """`now - before`, in float32."""

    def fetch(self, value: Any, start: int, stop: int, dtype: np.dtype[Any]) -> Landing:
        """Implement `psworker.backends.Model.fetch`."""

    def device(self, value: Any) -> str:
        """Name the device of an array in the framework's words."""


class KerasModel:
    """A Keras model or layer as a `psworker.backends.Model`, on any backend."""

    def __init__(self, found: KerasVariables, framework: Framework) -> None:
        self.found, self._framework = found, framework
        self.backend, self.specs = framework.name, found.specs
        # Of each variable, what `put` placed in it.
        self.placed: list[Any] = []

    @property
    def device(self) -> str:
        return ",".join(sorted({self._framework.device(each.value) for each in self.found.variables}))

    def values(self) -> list[NDArray[Any]]:
        return self.found.values()

    def put(self, arrays: Sequence[NDArray[Any]]) -> None:
        pairs = zip(self.found.variables, arrays, strict=True)
        self.placed = [self._framework.place(variable, array) for variable, array in pairs]

    def changes(self) -> list[Any]:
        pairs = zip(self.found.state, self.placed[self.found.trainable :], strict=True)
        return [self._framework.change(variable.value, before) for variable, before in pairs]

    def fetch(self, value: Any, start: int, stop: int, dtype: np.dtype[Any]) -> Landing:
        return self._framework.fetch(value, start, stop, dtype)


def metrics_of(model: Any) -> list[Any]:
    """List the metrics of a Keras model, also those given to `compile` that Keras lists only after the first batch."""
    compiled = model._compile_metrics if getattr(model, "compiled", False) else None
    given = [] if compiled is None else [compiled._user_metrics, compiled._user_weighted_metrics]
    listed = (each for metric in model.metrics for each in (getattr(metric, "metrics", None) or [metric]))
    found = {id(one): one for one in [*listed, *keras.tree.flatten(given)] if isinstance(one, keras.Metric)}
    return list(found.values())


# The step of `fit`


class FitError(Unsupported, RuntimeError):
    """Something in `fit` that parameter servers cannot do; the text says what, and what to do instead."""


class StepError(Unsupported, RuntimeError):
    """A `train_step` that cannot run on parameter servers; the text says what it would have to do."""


def assigns(name: str) -> StepError:
    """Return the error for a trained variable that gets a value within the step."""
    return StepError(
        f"train_step, or a layer in it, assigns a value to {name!r}, which is trained: on parameter servers the next "
        "version overwrites it. Use a regularizer or weight_decay instead, and trainable=False for a copy that is not "
        "trained"
    )


def reads_behind(name: str) -> StepError:
    """Return the error for a trained variable that is read where plain Keras has updated it already."""
    return StepError(
        f"train_step reads {name!r} after it has applied the gradients, and parameter servers make the new weights "
        "after the step: do at the beginning of train_step, where they are in the model, what you do with them (a mean "
        "teacher or a target network then follows them as before)"
    )


APPLIED_NONE = (
    "train_step applied no gradients with model.optimizer: a model that is distributed ends its step with "
    "self.optimizer.apply(gradients, variables), once"
)
APPLIED_TWICE = (
    "train_step applied gradients to one variable twice: on parameter servers a batch is one update; add the gradients "
    "up and apply them once"
)
APPLIED_TO_OTHERS = "train_step applied a gradient to a variable that is not in model.trainable_variables"


class Caught:
    """The input of an optimizer in `train_step`: a gradient by id of the framework's variable; the loss before
    scaling."""

    def __init__(self) -> None:
        self.gradients: dict[int, Any] = {}
        self.loss: Any = None

    def of(self, trained: Sequence[Any]) -> list[Any]:
        """Gradients of `trained`, None where the loss does not reach one. Raises StepError."""
        if not self.gradients:
            raise StepError(APPLIED_NONE)
        if not self.gradients.keys() <= {id(native(variable)) for variable in trained}:
            raise StepError(APPLIED_TO_OTHERS)
        return [self.gradients.get(id(native(variable))) for variable in trained]


def native(variable: Any) -> Any:
    """Return the framework's own variable."""
    return variable._value if isinstance(variable, keras.Variable) else variable


def unwrapped(optimizer: Any) -> Any:
    """Return the optimizer itself, without Keras' wrapper for dynamic loss scaling."""
    return optimizer.inner_optimizer if scales(optimizer) else optimizer


def scales(optimizer: Any) -> bool:
    """Its loss scale is dynamic."""
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


@contextmanager
def replaced(owner: Any, **attributes: Any) -> Iterator[None]:
    """Give an object attributes of its own, past Keras' tracking, for the time of the block."""
    for name, value in attributes.items():
        object.__setattr__(owner, name, value)
    try:
        yield
    finally:
        for name in attributes:
            object.__delattr__(owner, name)


@contextmanager
def catching(
    optimizer: Any, dense: Callable[[Any], Any], applied: Callable[[Caught], object]
) -> Iterator[Caught]:
    """Let `optimizer.apply` and `apply_gradients` keep the gradients, unscaled, instead of updating.

    `dense` makes a gradient a plain array; `applied` is called after each call.
    """
    caught, scaling = Caught(), optimizer.scale_loss

    def apply(grads: Any, trainable_variables: Any = None) -> None:
        variables = optimizer._trainable_variables if trainable_variables is None else trainable_variables
        scale = optimizer.dynamic_scale if scales(optimizer) else optimizer.loss_scale_factor
        for gradient, variable in zip(grads, variables, strict=True):
            key = id(native(variable))
            if key in caught.gradients:
                raise StepError(APPLIED_TWICE)
            if gradient is not None:
                gradient = dense(gradient)
                caught.gradients[key] = (
                    gradient if scale is None else gradient / keras.ops.cast(scale, gradient.dtype)
                )
        # As Keras counts; the number of the next version replaces it.
        unwrapped(optimizer)._iterations.assign_add(1)
        applied(caught)

    def scale_loss(loss: Any) -> Any:
        caught.loss = loss
        return scaling(loss)

    with replaced(optimizer, apply=apply, scale_loss=scale_loss):
        yield caught


def take_up(optimizer: Any, version: Any, *, new: bool) -> None:
    """Set what a Keras optimizer counts and averages to a version whose weights are in the model. `new`: it has not
    seen this version before. In a graph or not."""
    optimizer = unwrapped(optimizer)
    # Keras counts batches; its property `iterations` counts updates.
    every = optimizer.gradient_accumulation_steps or 1
    if new and optimizer.use_ema:
        # Averages ask `iterations` whether this is the first update.
        optimizer._iterations.assign((version - 1) * every)
        optimizer._update_model_variables_moving_average(optimizer._trainable_variables)
    optimizer._iterations.assign(version * every)


@dataclass(frozen=True)
class FitStep:
    """A compiled model as `fit` trains it here.

    `every` batches are one contribution, and `process` changes their mean gradient. `norm`: whether to compute the
    gradient's norm. `watch` observes metrics while a step runs or is traced; it gives the list of its findings, one
    array of the framework each, which `judge` gets behind each batch.
    """

    model: Any
    found: KerasVariables
    plan: Plan
    dtype: np.dtype[Any]
    every: int
    process: Callable[[list[Any]], list[Any]]
    norm: bool
    watch: Callable[[], AbstractContextManager[list[Any]]]
    judge: Callable[[list[Any]], None]


class Computation(Protocol):
    """The step of `fit` on one backend: `train_step` as Keras or the user wrote it, without the optimizer's update."""

    @property
    def placed(self) -> bool:
        """A version is in the model."""

    def prepare(self, batch: Any) -> None:
        """Compile for batches such as this one, or of these types, where the backend does so ahead; nothing runs."""

    def put(self, flats: Sequence[NDArray[Any]], version: int, *, new: bool) -> None:
        """Put the payloads of a version, one per server, into the model, its optimizer's counter and averages."""

    def restore(self, version: int) -> None:
        """Put the version in the model there once more, to the bit."""

    def same(self, tolerance: float) -> list[bool]:
        """Return for each variable whether it is what `put` made it, or as near as `tolerance`, relative to 1 or to its
        value."""

    def add(self, batch: Any) -> Any:
        """Compute a batch before the last of a contribution; its logs."""

    def finish(self, batch: Any, samples: int) -> StepResult:
        """Compute the last batch of a contribution of `samples` samples."""

    def rehearse(self, batch: Any) -> None:
        """Compute a contribution's first batch, and take back all that it changed but states of random generators."""


class TableComputation(Computation, Protocol):
    """A step that also takes a `LookedUp` for a batch."""

    def find(self, batch: Any) -> Callable[[], LookedUp]:
        """Return what finds the keys of a batch, for any thread."""


class Backend(Protocol):
    """The module `fit` of a backend's package."""

    framework: Framework

    def computation(self, step: FitStep, before: Computation | None) -> Computation:
        """Make the step of `fit`; `before`: the one that it replaces, whose weights are in the model."""

    def train_function(self, train: Callable[[Iterator[Any]], Any]) -> Callable[..., Any]:
        """Adapt `train`, which takes batches from an iterator and returns logs, to how Keras' `fit` calls it."""

    def keep_state(self, model: Any) -> dict[str, Callable[..., Any]]:
        """Methods that replace the model's own while it is distributed."""

    def endless(self, batch: Any, *, differ: bool) -> Any:
        """Make data for `fit` that gives this batch without end. `differ`: the batches it stands for may differ in
        size."""

    def refuse(self, model: Any) -> str | None:
        """Say why this backend cannot train the model on servers; None where it can."""


def backend() -> Backend:
    """Return the implementation for Keras' present backend. Raises ModelError for one that cannot train."""
    name = keras.backend.backend()
    if name not in ("tensorflow", "jax", "torch"):
        raise ModelError(
            f'Keras computes with {name!r} here: expected KERAS_BACKEND to be "tensorflow", "jax" or "torch"'
        )
    found: Any = import_module(f"psworker.backends.{name}.fit")
    return found


def near(now: Any, wanted: Any, tolerance: float) -> Any:
    """`now` equals `wanted`, or is as near as `tolerance`, relative to 1 or to `wanted`; NaN is near nothing."""
    ops = keras.ops
    found, wanted = ops.cast(now, "float32"), ops.cast(wanted, "float32")
    away = ops.abs(found - wanted) <= tolerance * ops.maximum(1.0, ops.abs(wanted))
    return ops.all(ops.logical_or(ops.equal(found, wanted), away))


@contextmanager
def undone(variables: Sequence[Any], copy: Callable[[Any], Any]) -> Iterator[None]:
    """Set Keras variables back at the end of the block."""
    before = [copy(variable.value) for variable in variables]
    yield
    for variable, value in zip(variables, before, strict=True):
        variable.assign(value)


def disturbed(step: FitStep) -> list[Any]:
    """List the variables that a batch changes, but for metrics, which begin anew, and states of random generators."""
    seeds = {id(each) for each in step.found.seeds}
    local = [each for each in step.found.local if id(each) not in seeds]
    return [*step.found.variables, *local, unwrapped(step.model.optimizer)._iterations]


def samples_of(batch: Any) -> int:
    """Length of axis 0 of the first array in `batch` that has one; 1 for a batch of bare numbers."""
    for leaf in keras.tree.flatten(batch.batch if isinstance(batch, LookedUp) else batch):
        shape: tuple[int, ...] = getattr(leaf, "shape", ())
        if len(shape):
            return int(shape[0])
    return 1


# Whether n workers under a barrier equal one process: servers take the mean of gradients, weighed by samples.

# How a batch's loss follows from those of its samples, where that is no mean over samples.
_OTHERS = {
    "sum": "sums over the samples of a batch, so one update of all workers is as large as one of a single worker",
    "mean_with_sample_weight": "divides by the sum of the sample weights, which may differ from batch to batch",
    None: "is not reduced to one number by Keras",
}


def warn_of_reduction(loss: Any, model: Any = None) -> None:
    """Warn once where `loss`, as Keras' `compile` takes it, is known to be no mean over samples. `model`: whose
    outputs Keras gives to it; with a mask, if layers made one."""
    outputs = getattr(model, "outputs", None) or ()
    if any(getattr(output, "_keras_mask", None) is not None for output in outputs):
        _warn_of_mask()
    for one in keras.tree.flatten(loss):
        reduction = getattr(one, "reduction", "sum_over_batch_size")
        if isinstance(one, keras.losses.Loss) and reduction in _OTHERS:
            _warn(type(one).__name__, str(reduction), _OTHERS[reduction])


@cache
def _warn_of_mask() -> None:
    log.warning(
        "an output of the model has a mask: Keras divides the loss by what is not masked, which may differ from batch "
        "to batch. Servers average gradients over workers, weighed by samples: several workers then differ from one "
        "process with all the samples; an output without a mask, or batches of equal lengths, do not",
        extra=event("loss_reduction", reduction="mask"),
    )


@cache
def _warn(name: str, reduction: str, what: str) -> None:
    log.warning(
        "the loss %s has reduction=%r: it %s. Servers average gradients over workers, weighed by samples: several "
        "workers then differ from one process with all the samples; the default reduction does not",
        *(name, reduction, what),
        extra=event("loss_reduction", reduction=reduction),
    )
