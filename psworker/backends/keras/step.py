"""One step of a compiled model: what it is given, what a backend does, and how an optimizer's update is taken out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import keras
import numpy as np
from numpy.typing import NDArray

from pswire.model.plan import Plan
from psworker.backends import StepResult
from psworker.backends.keras.variables import Framework, KerasVariables, implementation, native
from psworker.backends.lookups import LookedUp
from psworker.errors import Unsupported


class FitError(Unsupported, RuntimeError):
    """Something in `fit` or a `train_step` that parameter servers cannot do; the text says what to do instead."""


def assigns(name: str) -> FitError:
    """Return the error for a trained variable that gets a value within the step."""
    return FitError(
        f"train_step, the loss or a layer assigns a value to {name!r}, which is trained: on parameter servers the next "
        "version overwrites it. Use a regularizer or weight_decay instead, and trainable=False for a copy that is not "
        "trained"
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


NEEDS_LOSS = (
    "job {name} has a loss of its own, loss(self, model, batch), which TensorFlow differentiates, and Keras computes "
    "with {backend!r} here: expected loss = a Keras loss, or a function of (y_true, y_pred), or a model compiled in "
    "model(), with a train_step if need be; or KERAS_BACKEND=tensorflow"
)


class Caught:
    """The input of an optimizer in `train_step`: a gradient by id of the framework's variable; the loss before
    scaling."""

    def __init__(self) -> None:
        self.gradients: dict[int, Any] = {}
        self.loss: Any = None

    def of(self, trained: Sequence[Any]) -> list[Any]:
        """Gradients of `trained`, None where the loss does not reach one. Raises FitError."""
        if not self.gradients:
            raise FitError(APPLIED_NONE)
        if not self.gradients.keys() <= {id(native(variable)) for variable in trained}:
            raise FitError(APPLIED_TO_OTHERS)
        return [self.gradients.get(id(native(variable))) for variable in trained]


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
def catching(optimizer: Any, dense: Callable[[Any], Any] = lambda gradient: gradient) -> Iterator[Caught]:
    """Let `optimizer.apply` and `apply_gradients` keep the gradients, unscaled, instead of updating.

    `dense` makes a gradient a plain array.
    """
    caught, scaling = Caught(), optimizer.scale_loss

    def apply(grads: Any, trainable_variables: Any = None) -> None:
        variables = optimizer._trainable_variables if trainable_variables is None else trainable_variables
        scale = optimizer.dynamic_scale if scales(optimizer) else optimizer.loss_scale_factor
        for gradient, variable in zip(grads, variables, strict=True):
            key = id(native(variable))
            if key in caught.gradients:
                raise FitError(APPLIED_TWICE)
            if gradient is not None:
                gradient = dense(gradient)
                caught.gradients[key] = (
                    gradient if scale is None else gradient / keras.ops.cast(scale, gradient.dtype)
                )
        # As Keras counts; the number of the next version replaces it.
        unwrapped(optimizer)._iterations.assign_add(1)

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
class CompiledStep:
    """A compiled model, and how servers train it.

    `dtype`: of payloads; None for that in which the weights came. `every` batches are one contribution, and `process`
    changes their mean gradient; it gets the variables beside. `norm`: whether to compute the gradient's norm. `around`
    is entered while a step runs or is traced. `apart`: somebody looks at the gradients of tables one by one.
    """

    model: Any
    found: KerasVariables
    plan: Plan
    dtype: np.dtype[Any] | None
    every: int
    process: Callable[[list[Any], Sequence[Any]], list[Any]]
    norm: bool
    around: Callable[[], AbstractContextManager[None]] = nullcontext
    apart: bool = False


def own_train_step(model: Any) -> bool:
    """Return whether the user wrote the model's `train_step`."""
    return type(model).train_step is not keras.Model.train_step


class Computation(Protocol):
    """One step on one backend: `train_step` as Keras or the user wrote it, without the optimizer's update."""

    @property
    def placed(self) -> bool:
        """A version is in the model."""

    def prepare(self, batch: Any, *, differ: bool = False) -> None:
        """Compile for batches such as this one, or of these types, where the backend does so ahead; nothing runs.

        `differ`: batches of a size of their own need nothing else, where the backend can do that.
        """

    def put(self, flats: Sequence[NDArray[Any]], version: int | None = None, *, new: bool = False) -> None:
        """Put the payloads of a version, one per server, into the model, its optimizer's counter and averages.

        `version`: None where nobody looks at the model before the next batch; the optimizer counts batches then.
        """

    def same(self) -> list[bool]:
        """Return for each variable whether it is what `put` made it."""

    def add(self, batch: Any) -> Any:
        """Compute a batch before the last of a contribution; its logs."""

    def finish(self, batch: Any, samples: int) -> StepResult:
        """Compute the last batch of a contribution of `samples` samples."""


class TableComputation(Computation, Protocol):
    """A step that also takes a `LookedUp` for a batch."""

    def find(self, batch: Any) -> Callable[[], LookedUp]:
        """Return what finds the keys of a batch, for any thread."""


class Backend(Protocol):
    """The module `step` of a backend's package."""

    framework: Framework

    def set_up(self, device: str, *, deterministic: bool) -> str:
        """Choose the device of this process, "auto", "cpu" or "gpu:N", before the framework computes; return its name.

        `deterministic`: the same inputs give the same bits. Raises DeviceError for a device that is not there.
        """

    def collect(self, model: Any) -> KerasVariables:
        """Collect the variables of a model, which need not be Keras' where the backend's own variables have names.

        Raises ModelError.
        """

    def bare(self, loss: Callable[[Any, Any], Any], model: Any, name: str) -> Any:
        """Make a Keras model, to be compiled, that trains `model` by the function ``loss(model, batch)`` of job `name`.

        Raises ModelError where the backend needs a loss that Keras knows.
        """

    def save(self, model: Any, path: Path) -> bool:
        """Write a model that is not Keras', where the backend has a format for it; return whether it has."""

    def computation(self, step: CompiledStep, before: Computation | None = None) -> Computation:
        """Make a step; `before`: the one that it replaces, whose weights are in the model."""

    def train_function(self, train: Callable[[Iterator[Any]], Any]) -> Callable[..., Any]:
        """Adapt `train`, which takes batches from an iterator and returns logs, to how Keras' `fit` calls it."""

    def keep_state(self, model: Any) -> dict[str, Callable[..., Any]]:
        """Methods that replace the model's own while it is distributed."""

    def refuse(self, model: Any) -> str | None:
        """Say why this backend cannot train the model on servers; None where it can."""


def backend() -> Backend:
    """Return the implementation for Keras' present backend. Raises ModelError for one that cannot train."""
    found: Backend = implementation()
    return found


def equal(now: Any, wanted: Any) -> Any:
    """`now` equals `wanted`; NaN equals nothing."""
    ops = keras.ops
    return ops.all(ops.equal(ops.cast(now, "float32"), ops.cast(wanted, "float32")))


def samples_of(batch: Any) -> int:
    """Length of axis 0 of the first array in `batch` that has one; 1 for a batch of bare numbers."""
    for leaf in keras.tree.flatten(batch.batch if isinstance(batch, LookedUp) else batch):
        shape: tuple[int, ...] = getattr(leaf, "shape", ())
        if len(shape):
            return int(shape[0])
    return 1


def metrics_of(model: Any) -> list[Any]:
    """List the metrics of a Keras model, also those given to `compile` that Keras lists only after the first batch."""
    compiled = model._compile_metrics if getattr(model, "compiled", False) else None
    given = [] if compiled is None else [compiled._user_metrics, compiled._user_weighted_metrics]
    listed = (each for metric in model.metrics for each in (getattr(metric, "metrics", None) or [metric]))
    found = {id(one): one for one in [*listed, *keras.tree.flatten(given)] if isinstance(one, keras.Metric)}
    return list(found.values())
