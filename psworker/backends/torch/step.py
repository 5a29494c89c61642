"""One step on PyTorch, of jobs and of `fit`: `train_step` runs eagerly, and the gradient is taken where it would be
applied."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import torch
from keras.src.backend.torch import core
from numpy.typing import NDArray

from psworker.backends import ModelError, StepResult, cut, gpu_number, payloads
from psworker.backends.keras.step import (
    NEEDS_LOSS,
    CompiledStep,
    Computation,
    assigns,
    catching,
    equal,
    take_up,
)
from psworker.backends.keras.variables import KerasModel, collect, native
from psworker.backends.torch import fetch, place, tensor_of

__all__ = [
    "bare",
    "collect",
    "computation",
    "framework",
    "keep_state",
    "refuse",
    "save",
    "set_up",
    "train_function",
]


def _place(variable: Any, array: NDArray[Any]) -> torch.Tensor:
    value = native(variable)
    place(tensor_of(array), value)
    return value.detach().clone()


def _read(value: torch.Tensor) -> NDArray[Any]:
    value = value.detach().cpu()
    # numpy does not know torch's bfloat16.
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy().copy()


def _change(now: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    return now.detach().float() - before.float()


framework = SimpleNamespace(
    name="torch",
    kinds=(keras.Variable,),
    traces=lambda values: torch.compiler.is_compiling(),
    place=_place,
    read=_read,
    change=_change,
    fetch=fetch,
    device=lambda value: str(value.device),
    tensor=lambda value: None if value is None else keras.ops.convert_to_tensor(value),
)


class TorchStep:
    """A step, in eager mode; by `torch.compile` where the model was compiled with jit_compile=True."""

    def __init__(self, step: CompiledStep, before: TorchStep | None) -> None:
        self._of = step
        self._variables: KerasModel = (
            before._variables if before is not None else KerasModel(step.found, framework)
        )
        self._optimizer = step.model.optimizer
        compiles = bool(step.model.jit_compile) and not step.model.run_eagerly
        self._train_step = torch.compile(step.model.train_step) if compiles else step.model.train_step
        # Over the batches of a contribution before its last.
        self._loss: Any = 0.0
        # Of the weights that came last.
        self._dtype: Any = np.dtype(np.float32)
        self._gradients: list[Any] = []

    @property
    def placed(self) -> bool:
        return bool(self._variables.placed)

    def prepare(self, batch: Any, *, differ: bool = False) -> None:
        """Nothing is compiled ahead."""

    def put(self, flats: Sequence[NDArray[Any]], version: int | None = None, *, new: bool = False) -> None:
        self._variables.put(cut(self._of.plan, flats))
        self._dtype = flats[0].dtype
        if version is not None:
            take_up(self._optimizer, version, new=new)
        else:
            # The contribution before may have ended in an exception.
            self._loss, self._gradients = 0.0, []

    def same(self) -> list[bool]:
        pairs = zip(self._of.found.variables, self._variables.placed, strict=True)
        with torch.no_grad():
            return [bool(equal(variable.value, value)) for variable, value in pairs]

    def add(self, batch: Any) -> Any:
        logs, loss, gradients = self._run(batch)
        self._loss = self._loss + loss
        if self._gradients:
            gradients = [a + b for a, b in zip(self._gradients, gradients, strict=True)]
        # Keras may use the memory of a gradient again.
        self._gradients = [gradient.clone() for gradient in gradients]
        return logs

    def finish(self, batch: Any, samples: int) -> StepResult:
        logs, loss, gradients = self._run(batch)
        if self._gradients:
            every = self._of.every
            gradients = [(a + b) / every for a, b in zip(gradients, self._gradients, strict=True)]
            loss = (self._loss + loss) / every
            self._loss, self._gradients = 0.0, []
        with torch.no_grad():
            gradients = self._of.process(gradients, self._of.found.trained)
            changes = self._variables.changes()
        # Before the norm and the loss, which wait for the device.
        found = payloads(
            self._of.plan, self._variables, [*gradients, *changes], self._of.dtype or self._dtype
        )
        norm = 0.0
        if self._of.norm:
            norm = float(
                torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients]))
            )
        return StepResult(found, float(loss), norm, samples, logs)

    def _run(self, batch: Any) -> tuple[Any, Any, list[torch.Tensor]]:
        """One `train_step`: logs, the loss, a float32 gradient per trained variable."""
        trained = self._of.found.trained
        versions = [native(variable)._version for variable in trained]
        with self._of.around(), catching(self._optimizer) as caught:
            logs = self._train_step(batch)
        for variable, spec, version in zip(trained, self._of.found.specs, versions, strict=False):
            if native(variable)._version != version:
                raise assigns(spec.name)
        gradients = [
            torch.zeros_like(native(variable), dtype=torch.float32) if one is None else one.detach().float()
            for variable, one in zip(trained, caught.of(trained), strict=True)
        ]
        loss = caught.loss if caught.loss is not None else logs.get("loss", float("nan"))
        return logs, loss.detach() if isinstance(loss, torch.Tensor) else loss, gradients


def set_up(device: str, *, deterministic: bool) -> str:
    """Let Keras compute on this device; `deterministic`: by one thread, and by operations that are the same again."""
    number = gpu_number(device, torch.cuda.device_count(), "PyTorch")
    chosen = "cpu" if number is None else f"gpu:{number}"
    if device != "auto":
        # Keras' own scope of a device is of one thread, and ends with `clear_session`.
        core.DEFAULT_DEVICE = "cpu" if number is None else f"cuda:{number}"
    if deterministic:
        # Without it cuBLAS refuses every product of matrices.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.set_num_threads(1)
    return chosen


def bare(loss: Callable[[Any, Any], Any], model: Any, name: str) -> Any:
    raise ModelError(NEEDS_LOSS.format(name=name, backend="torch"))


def save(model: Any, path: Path) -> bool:
    return False


def computation(step: CompiledStep, before: Computation | None = None) -> TorchStep:
    return TorchStep(step, before if isinstance(before, TorchStep) else None)


def train_function(train: Callable[[Iterator[Any]], Any]) -> Callable[..., Any]:
    """Keras gives a list of batches, one for each step of an execution."""
    return lambda data: train(iter(data))


def keep_state(model: Any) -> dict[str, Callable[..., Any]]:
    return {}


def refuse(model: Any) -> str | None:
    if model.steps_per_execution > 1:
        return "steps_per_execution: Keras' PyTorch backend takes one step at a time, expected 1"
    for name, module in model.named_modules():
        if type(module).__name__.endswith("DataParallel"):
            return (
                f"{name!r} is wrapped in {type(module).__name__}, which averages gradients itself: expected the module "
                "without it"
            )
    return None
