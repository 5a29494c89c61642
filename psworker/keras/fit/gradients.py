"""Batch after batch of a compiled model: gradients instead of new weights, on any of Keras' backends.

`train_step` runs as Keras or the user wrote it (loss, metrics, class and sample weights, regularisers, loss scale).
Where it would let the optimizer apply gradients they are kept, processed as Keras would before its update (unscaled,
accumulated, clipped where the server does not), and pushed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from numpy.typing import NDArray

from pswire.model.plan import Plan, VariableSpec
from pswire.transport.wire import wire_named
from psworker.backends import StepResult
from psworker.backends.keras.step import (
    CompiledStep,
    Computation,
    TableComputation,
    backend,
    own_train_step,
    samples_of,
    scales,
    unwrapped,
)
from psworker.backends.keras.variables import KerasVariables
from psworker.backends.lookups import LookedUp


class GradientStep:
    """The batches of one worker; `gradient_accumulation_steps` of them make a contribution."""

    def __init__(
        self,
        model: Any,
        variables: KerasVariables,
        plan: Plan,
        wire_dtype: str,
        version: int = 0,
        before: GradientStep | None = None,
        *,
        clips: bool,
    ) -> None:
        """Trace the step. `version`: of the weights in the model, which `before` put there. `clips`: gradients are
        clipped here, and not by the server."""
        optimizer = unwrapped(model.optimizer)
        self._variables = variables
        self._every = optimizer.gradient_accumulation_steps or 1
        self._taken = self._samples = 0
        #: The types of batches that the step was prepared for.
        self.types: Any = None
        self._version = version
        step = CompiledStep(
            *(model, variables, plan, wire_named(wire_dtype).array_dtype, self._every),
            process=lambda gradients, _: optimizer._clip_gradients(gradients) if clips else gradients,
            # A dynamic loss scale follows from whether gradients are finite; else servers refuse what is not.
            norm=scales(model.optimizer),
            apart=own_train_step(model) or bool(optimizer.clipnorm),
        )
        self._compute: Computation = backend().computation(step, None if before is None else before._compute)

    @property
    def placed(self) -> bool:
        """A version is in the model."""
        return self._compute.placed

    def find(self, data: Any) -> Callable[[], LookedUp]:
        """Return what finds the keys of a batch, of a model with tables; other methods take what that returns."""
        compute = cast(TableComputation, self._compute)
        return compute.find(data)

    def prepare(self, data: Any) -> None:
        """Compile the step for batches such as `data`, where the backend does so ahead; nothing runs."""
        self._compute.prepare(data)

    def __call__(self, data: Any) -> tuple[Mapping[str, Any], StepResult | None]:
        """One batch: its logs, and what to contribute; None while gradients are accumulated."""
        self._samples += samples_of(data)
        if self._taken < self._every - 1:
            self._taken += 1
            return self._compute.add(data), None
        result = self._compute.finish(data, self._samples)
        self._taken = self._samples = 0
        return result.logs, result

    def number(self, contribution: int) -> int:
        """Return the number of the next batch, which is of that contribution."""
        return contribution * self._every + self._taken

    def assign(self, flats: Sequence[NDArray[Any]], version: int) -> None:
        """Put the payloads of `version` into the model."""
        # A version that is read again is not averaged again.
        self._compute.put(flats, version, new=version > self._version)
        self._version = version

    @property
    def unchanged(self) -> bool:
        """All variables are what `assign` made them."""
        return all(self._compute.same())

    def differing(self) -> list[VariableSpec]:
        """List the trained variables that are not what `assign` made them."""
        trained = self._variables.specs[: self._variables.trainable]
        return [spec for spec, one in zip(trained, self._compute.same(), strict=False) if not one]


def move_loss_scale(optimizer: Any, norm: float) -> bool:
    """Move a dynamic loss scale as Keras does after a gradient of this norm. Return whether the norm is finite."""
    finite = math.isfinite(norm)
    if not finite:
        optimizer.step_counter.assign(0)
        optimizer.dynamic_scale.assign(optimizer.dynamic_scale * 0.5)
    elif int(optimizer.step_counter) == optimizer.dynamic_growth_steps - 1:
        optimizer.step_counter.assign(0)
        optimizer.dynamic_scale.assign(optimizer.dynamic_scale * 2.0)
    else:
        optimizer.step_counter.assign_add(1)
    return finite
