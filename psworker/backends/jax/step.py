"""One step on JAX, of jobs and of `fit`: the stateless `train_step`, compiled once, `stateless_apply` replaced."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from numpy.typing import NDArray

from psworker.backends import (
    DeviceError,
    ModelError,
    StepResult,
    gpu_number,
    neighbours,
    places,
)
from psworker.backends.jax import PROCESSES, fetch, landing, placed, shardings
from psworker.backends.keras.step import (
    APPLIED_NONE,
    APPLIED_TO_OTHERS,
    APPLIED_TWICE,
    NEEDS_LOSS,
    CompiledStep,
    Computation,
    FitError,
    assigns,
    equal,
    replaced,
    scales,
    take_up,
    unwrapped,
)
from psworker.backends.keras.variables import collect, native
from psworker.data.payloads import Payload, Pieces

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


def _place(variable: Any, array: NDArray[Any]) -> Any:
    value = variable.value
    found = placed([array], shardings([value]))[0].astype(value.dtype)
    variable._direct_assign(found)
    # Keras' evaluate() donates the memory of the variable's own.
    return jnp.copy(found)


def _change(now: Any, before: Any) -> Any:
    return jnp.asarray(now, jnp.float32) - jnp.asarray(before, jnp.float32)


framework = SimpleNamespace(
    name="jax",
    kinds=(keras.Variable,),
    traces=lambda values: any(isinstance(value, jax.core.Tracer) for value in values),
    place=_place,
    read=np.asarray,
    change=_change,
    fetch=fetch,
    device=lambda value: ",".join(sorted(f"{each.platform}:{each.id}" for each in value.devices())),
    tensor=lambda value: None if value is None else jnp.asarray(value),
)


class JaxStep:
    """A step. Arrays whose shapes stay compile once; the memory of the metrics' variables is donated."""

    def __init__(self, step: CompiledStep, before: JaxStep | None) -> None:
        self._of, self._model, self._places = step, step.model, places(step.plan)
        # The payloads of the version in the model.
        self._flats: list[Any] = before._flats if before is not None else []
        #: How often the step was traced.
        self.traces = 0
        jit = jax.jit if self._model.jit_compile and not self._model.run_eagerly else _as_it_is
        self._adding = jit(self._add, donate_argnums=2)
        self._finishing = jit(self._finish, donate_argnums=2)
        self._taking, self._comparing = jax.jit(self._taken), jax.jit(self._same)
        # Of the batches of a contribution before its last: the sums of the loss and of the gradients.
        self._sums: Any = None
        # The variables that `train_step` takes, in its order; to list them takes long. Kept within an epoch.
        self._lists: tuple[list[Any], ...] | None = None

    @property
    def placed(self) -> bool:
        return bool(self._flats)

    def prepare(self, batch: Any, *, differ: bool = False) -> None:
        """Make what Keras' `fit` makes when it sees a batch: metrics, losses. The first step compiles."""
        if differ:
            self._model._symbolic_build(data_batch=batch)

    def put(self, flats: Sequence[NDArray[Any]], version: int | None = None, *, new: bool = False) -> None:
        self._flats = placed(flats, shardings([self._of.found.variables[0].value] * len(flats)))
        self._take(version, new)
        if version is None:
            # The contribution before may have ended in an exception.
            self._sums = None

    def _take(self, version: int | None, new: bool) -> None:
        """One compiled call, for one by variable takes milliseconds."""
        optimizer = unwrapped(self._model.optimizer)
        if version is None:
            batches = native(optimizer._iterations)
        else:
            batches = np.asarray(
                version * (optimizer.gradient_accumulation_steps or 1), optimizer._iterations.dtype
            )
        values, count = self._taking(self._flats, batches)
        for variable, value in zip(self._of.found.variables, values, strict=True):
            variable._direct_assign(value)
        if optimizer.use_ema and version is not None:
            take_up(optimizer, version, new=new)
        optimizer._iterations._direct_assign(count)

    def same(self) -> list[bool]:
        # Asked at the beginning of each fit and epoch. Between two, metrics may be others.
        self._lists = None
        values = [variable.value for variable in self._of.found.variables]
        return [bool(each) for each in np.asarray(self._comparing(values, self._flats))]

    def add(self, batch: Any) -> Any:
        state = self._state()
        logs, self._sums, moved = self._adding(*state, self._sums, batch)
        self._move(moved)
        return logs

    def finish(self, batch: Any, samples: int) -> StepResult:
        logs, parts, loss, norm, moved = self._finishing(*self._state(), self._sums, batch, self._flats)
        self._sums = None
        self._move(moved)
        made = [_payload(each) for each in parts]
        return StepResult(made, float(loss), 0.0 if norm is None else float(norm), samples, logs)

    def _state(self) -> tuple[list[Any], ...]:
        if self._lists is None:
            model = self._model
            self._lists = (
                list(model.trainable_variables),
                list(model.non_trainable_variables),
                list(model.metrics_variables),
                list(model.optimizer.variables),
            )
        return tuple([native(variable) for variable in each] for each in self._lists)

    def _move(self, moved: tuple[list[Any], list[Any], Any]) -> None:
        """Move what a step has changed beside the weights into the variables."""
        *several, count = moved
        assert self._lists is not None
        for variables, values in zip(self._lists[1:3], several, strict=True):
            for variable, value in zip(variables, values, strict=True):
                variable._direct_assign(value)
        unwrapped(self._model.optimizer)._iterations._direct_assign(count)

    # Traced

    def _cut(self, flats: list[Any], first: int = 0) -> list[Any]:
        """Payloads to one value per variable from number `first` on, in its own shape and dtype."""
        values = []
        found = zip(self._of.found.variables[first:], self._places[first:], strict=True)
        for variable, pieces in found:
            parts = [flats[server][start:stop] for server, start, stop in pieces]
            whole = parts[0] if len(parts) == 1 else jnp.concatenate(parts)
            values.append(whole.reshape(variable.shape).astype(variable.dtype))
        return values

    def _taken(self, flats: list[Any], batches: Any) -> tuple[list[Any], Any]:
        """Return a version's values, and what the optimizer counts then: Keras' own assignment takes several
        operations."""
        return self._cut(flats), jnp.copy(batches)

    def _same(self, values: list[Any], flats: list[Any]) -> Any:
        pairs = zip(values, self._cut(flats), strict=True)
        return jnp.stack([equal(value, wanted) for value, wanted in pairs])

    def _add(
        self, trained: Any, others: Any, metrics: Any, optimizer: Any, sums: Any, batch: Any
    ) -> tuple[Any, Any, Any]:
        logs, found, moved = self._run(trained, others, metrics, optimizer, batch)
        if sums is not None:
            found = [a + b for a, b in zip(sums, found, strict=True)]
        return logs, found, moved

    def _finish(
        self, trained: Any, others: Any, metrics: Any, optimizer: Any, sums: Any, batch: Any, flats: Any
    ) -> tuple[Any, ...]:
        logs, found, moved = self._run(trained, others, metrics, optimizer, batch)
        if sums is not None:
            found = [(a + b) / self._of.every for a, b in zip(found, sums, strict=True)]
        loss, *gradients = found
        gradients = self._of.process(gradients, self._of.found.trained)
        places = {id(variable): place for place, variable in enumerate(self._model.non_trainable_variables)}
        after = [moved[0][places[id(variable)]] for variable in self._of.found.state]
        before = self._cut(flats, self._of.found.trainable)
        changes = [_change(now, then) for now, then in zip(after, before, strict=True)]
        norm = jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in gradients)) if self._of.norm else None
        return logs, self._join([*gradients, *changes], flats[0].dtype), loss, norm, moved

    def _run(
        self, trained: Any, others: Any, metrics: Any, optimizer: Any, batch: Any
    ) -> tuple[Any, list[Any], tuple[Any, Any, Any]]:
        """One `train_step`: logs, the loss and a float32 gradient per trained variable, what it moved."""
        self.traces += 1
        names = [spec.name for spec in self._of.found.specs[: self._of.found.trainable]]
        with self._of.around(), _catching(self._model, trained, names) as caught:
            logs, state = self._model.train_step((trained, others, optimizer, metrics), batch)
        after, others, _, metrics = state
        if not caught.applied:
            raise FitError(APPLIED_NONE)
        for name, one, other in zip(names, after, trained, strict=True):
            if one is not other:
                raise assigns(name)
        gradients = [
            jnp.zeros(value.shape, jnp.float32) if one is None else jnp.asarray(one, jnp.float32)
            for one, value in zip(caught.gradients, trained, strict=True)
        ]
        loss = caught.loss if caught.loss is not None else logs.get("loss", jnp.nan)
        # As Keras counts; the number of the next version replaces it.
        count = optimizer[self._place_of(unwrapped(self._model.optimizer)._iterations)] + 1
        return logs, [jnp.asarray(loss, jnp.float32), *gradients], (others, metrics, count)

    def _place_of(self, variable: Any) -> int:
        """Where one of the optimizer's variables is among them."""
        return [id(each) for each in self._model.optimizer.variables].index(id(variable))

    def _join(self, values: list[Any], dtype: Any) -> list[list[Any]]:
        """Join the parts of each payload that lie one behind the other, cast for the wire; to `dtype` if need be."""
        plan, dtype = self._of.plan, self._of.dtype or dtype
        rows = [value.reshape(spec.rows, -1) for value, spec in zip(values, plan.variables, strict=True)]
        joined = []
        for shard in plan.shards:
            parts = [
                rows[piece.variable][piece.start : piece.stop].reshape(-1).astype(dtype)
                for piece in shard.slices
            ]
            runs = neighbours([part.size for part in parts])
            joined.append([jnp.concatenate([parts[k] for k in run]) for run in runs] or [jnp.zeros(0, dtype)])
        return joined


def _as_it_is(function: Any, **_: Any) -> Any:
    return function


def _payload(parts: list[Any]) -> Payload:
    return Pieces([landing(part) for part in parts], sum(part.size for part in parts), parts[0].dtype)


@contextmanager
def _catching(model: Any, trained: list[Any], names: list[str]) -> Iterator[SimpleNamespace]:
    """Let `stateless_apply` keep the gradients, unscaled, instead of updating; also the loss of Keras' own step."""
    optimizer = model.optimizer
    caught = SimpleNamespace(gradients=[], loss=None, applied=False)
    metrics = model._update_metrics_variables

    def stateless_apply(values: Any, grads: Any, variables: Any) -> tuple[Any, Any]:
        if caught.applied:
            raise FitError(APPLIED_TWICE)
        if len(variables) != len(trained):
            raise FitError(APPLIED_TO_OTHERS)
        for name, one, other in zip(names, variables, trained, strict=True):
            if one is not other:
                raise assigns(name)
        scale = optimizer.loss_scale_factor
        if scales(optimizer):
            places = [id(variable) for variable in optimizer.variables]
            scale = values[places.index(id(optimizer.dynamic_scale))]
        caught.gradients = [
            one if one is None or scale is None else one / jnp.asarray(scale, one.dtype) for one in grads
        ]
        caught.applied = True
        return list(variables), values

    def update(metrics_variables: Any, unscaled_loss: Any, *args: Any, **more: Any) -> Any:
        caught.loss = unscaled_loss
        return metrics(metrics_variables, unscaled_loss, *args, **more)

    with (
        replaced(optimizer, stateless_apply=stateless_apply),
        replaced(model, _update_metrics_variables=update),
    ):
        yield caught


def set_up(device: str, *, deterministic: bool) -> str:
    """Make this device JAX's default. On a CPU the same inputs give the same bits; on a GPU, XLA's flags decide."""
    gpus = [each for each in jax.devices() if each.platform != "cpu"]
    number = gpu_number(device, len(gpus), "JAX")
    if device != "auto":
        chosen = jax.devices("cpu")[0] if number is None else gpus[number]
        jax.config.update("jax_default_device", chosen)
    if deterministic and number is not None and "deterministic" not in os.environ.get("XLA_FLAGS", ""):
        raise DeviceError(
            "a deterministic run on a GPU needs XLA_FLAGS=--xla_gpu_deterministic_ops=true in the environment"
        )
    return "cpu" if number is None else f"gpu:{number}"


def bare(loss: Callable[[Any, Any], Any], model: Any, name: str) -> Any:
    raise ModelError(NEEDS_LOSS.format(name=name, backend="jax"))


def save(model: Any, path: Path) -> bool:
    return False


def computation(step: CompiledStep, before: Computation | None = None) -> JaxStep:
    return JaxStep(step, before if isinstance(before, JaxStep) else None)


_NOTHING = (None, None, None, None)


def train_function(train: Callable[[Iterator[Any]], Any]) -> Callable[..., Any]:
    """Keras passes its state along, which stays in the variables here."""
    return lambda state, iterator: (train(iterator), _NOTHING)


def keep_state(model: Any) -> dict[str, Callable[..., Any]]:
    """Keras' loop takes values out of the variables while it trains; here they stay, for versions go into them."""
    plain_state = model._get_jax_state

    def state(**wanted: bool) -> Any:
        return _NOTHING if wanted.get("optimizer_variables") else plain_state(**wanted)

    return {"_get_jax_state": state}


def refuse(model: Any) -> str | None:
    if jax.process_count() > 1:
        return PROCESSES
    if keras.config.is_nnx_enabled():
        return (
            "Keras' NNX mode keeps variables as Flax modules do: expected keras.config without NNX "
            "(KERAS_NNX_ENABLED unset), or a loop with psworker.jax.distribute"
        )
    distribution = keras.distribution.distribution()
    if distribution is not None and distribution.device_mesh.devices.size > 1:
        return (
            f"keras.distribution spreads the model over {distribution.device_mesh.devices.size} devices, and each "
            "worker computes on one: expected no distribution, and a worker for each device"
        )
    return None
