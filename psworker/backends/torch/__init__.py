"""A PyTorch module as a `psworker.backends.Model`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray

from pswire.model.plan import VariableSpec
from psworker.backends import Landing, ModelError

# So many versions are compared by value with what became of them.
COMPARED = 3
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_WIRE = {np.dtype(np.float32): torch.float32, np.dtype(np.float16): torch.float16, _BFLOAT16: torch.bfloat16}


class TorchModel:
    """The parameters of `trained` that need a gradient are trained. Other parameters and the buffers of `state_dict()`
    are state; what is not floating, other buffers, and constants with infinite numbers (a causal mask) stay in this
    process. A shared parameter counts once.

    Raises ModelError for what servers cannot hold, and for parameters of `trained` that the model does not have.
    """

    backend = "torch"

    def __init__(self, model: torch.nn.Module, trained: Collection[torch.Tensor]) -> None:
        if hasattr(model, "module") and type(model).__name__.endswith("DataParallel"):
            raise ModelError(
                f"the model is wrapped in {type(model).__name__}, which averages gradients itself: expected the model "
                "without it (model.module)"
            )
        wanted = {id(each) for each in trained}
        self.parameters: list[torch.Tensor] = []
        state: list[tuple[str, torch.nn.Module, str]] = []
        specs: list[VariableSpec] = []
        for name, owner, attribute, tensor in _tensors(model):
            if not (tensor.is_floating_point() or tensor.is_complex()):
                continue
            _check(name, tensor)
            shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
            if id(tensor) in wanted and tensor.requires_grad:
                self.parameters.append(tensor)
                specs.insert(len(self.parameters) - 1, VariableSpec(name, shape, dtype))
            elif torch.isfinite(tensor).all():
                state.append((name, owner, attribute))
                specs.append(VariableSpec(name, shape, dtype, "state"))
        unknown = len(wanted - {id(each) for each in model.parameters()})
        if unknown:
            raise ModelError(
                f"the optimizer trains {unknown} parameters that the model does not have: expected an optimizer of "
                "this model's parameters, all or some"
            )
        if not self.parameters:
            raise ModelError("no parameter of the optimizer requires a gradient: nothing is to be trained")
        self.specs: Sequence[VariableSpec] = tuple(specs)
        self._state = state
        self._before: list[torch.Tensor] = []
        # Of the trained parameters since `put`: their versions, and of the first of these their values.
        self._put: list[int] = []
        self._kept: list[torch.Tensor] = []
        self._puts = 0

    @property
    def device(self) -> str:
        return ",".join(sorted({str(tensor.device) for tensor in self._all()}))

    def values(self) -> list[NDArray[Any]]:
        return [tensor.detach().to("cpu", torch.float32).numpy() for tensor in self._all()]

    def put(self, arrays: Sequence[NDArray[Any]]) -> None:
        for tensor, array in zip(self._all(), arrays, strict=True):
            place(tensor_of(array), tensor)
        with torch.no_grad():
            self._before = [tensor.detach().clone() for tensor in self._buffers()]
        self._put = [tensor._version for tensor in self.parameters]
        self._puts += 1
        self._kept = [each.detach().clone() for each in self.parameters] if self._puts <= COMPARED else []

    def check_unchanged(self) -> None:
        """Raise ModelError where something else than `put` has changed a trained parameter since.

        PyTorch does not count changes by way of `data`, as of a loop that clamps its weights: the first versions are
        compared by value.
        """
        for spec, tensor, version in zip(self.specs, self.parameters, self._put, strict=False):
            if str(tensor.dtype) != f"torch.{spec.dtype}":
                raise ModelError(
                    f"parameter {spec.name!r} was {spec.dtype} when the job began, and has the dtype {tensor.dtype} "
                    "now: convert the model before distribute()"
                )
            if tensor._version != version:
                raise _changed(spec.name)
        for spec, tensor, value in zip(self.specs, self.parameters, self._kept, strict=False):
            if not torch.equal(tensor.detach().to(value.device), value):
                raise _changed(spec.name)

    def changes(self) -> list[torch.Tensor]:
        return [
            now.detach().float() - before.float()
            for now, before in zip(self._buffers(), self._before, strict=True)
        ]

    def fetch(self, value: Any, start: int, stop: int, dtype: np.dtype[Any]) -> Landing:
        return fetch(value, start, stop, dtype)

    def _buffers(self) -> list[torch.Tensor]:
        # Looked up each time: to(device) and assignments put other tensors in their place.
        return [getattr(owner, attribute) for _, owner, attribute in self._state]

    def _all(self) -> list[torch.Tensor]:
        return [*self.parameters, *self._buffers()]


def _changed(name: str) -> ModelError:
    return ModelError(
        f"parameter {name!r} was changed between two steps, and its values come from the servers: change or load "
        "weights before distribute()"
    )


def fetch(value: Any, start: int, stop: int, dtype: np.dtype[Any]) -> Landing:
    """Implement `psworker.backends.Model.fetch`."""
    rows = (value[start:stop] if value.dim() else value).detach().reshape(-1)
    if rows.device.type != "cuda":
        return lambda: _array(rows.to(_WIRE[dtype]).cpu(), dtype)
    # Through page-locked memory, while the caller goes on.
    target = torch.empty(rows.shape, dtype=_WIRE[dtype], pin_memory=True)
    target.copy_(rows.to(_WIRE[dtype]), non_blocking=True)
    landed = torch.cuda.Event()
    landed.record(torch.cuda.current_stream(rows.device))

    def land() -> NDArray[Any]:
        landed.synchronize()
        return _array(target, dtype)

    return land


def place(values: torch.Tensor, into: torch.Tensor) -> None:
    """Put values of the host, whose memory is used again behind this call, into a tensor on its device."""
    with torch.no_grad():
        if into.device.type == "cuda":
            into.copy_(values.pin_memory(), non_blocking=True)
        else:
            into.copy_(values)


def _array(found: torch.Tensor, dtype: np.dtype[Any]) -> NDArray[Any]:
    # numpy does not know torch's bfloat16, but its bits.
    return found.view(torch.int16).numpy().view(dtype) if dtype == _BFLOAT16 else found.numpy()


def _tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, str, torch.Tensor]]:
    """Yield name, owner, attribute and tensor of what `state_dict()` has, each tensor once."""
    seen: set[int] = set()
    for path, module in model.named_modules():
        own = [(name, tensor) for name, tensor in module._parameters.items()]
        local = module._non_persistent_buffers_set
        own += [(name, tensor) for name, tensor in module._buffers.items() if name not in local]
        for name, tensor in own:
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                yield f"{path}.{name}" if path else name, module, name, tensor


def _check(name: str, tensor: torch.Tensor) -> None:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
        raise ModelError(f"{name!r} has no shape yet: run the model on one batch before distribute()")
    if tensor.is_complex():
        raise ModelError(
            f"{name!r} has dtype {dtype}, and servers train real numbers only: hold its real and imaginary parts in a "
            "real parameter (torch.view_as_real)"
        )
    if tensor.dtype == torch.float64:
        raise ModelError(f"{name!r} has dtype float64, and servers reckon in float32: call model.float()")
    if tensor.dtype not in _WIRE.values():
        raise ModelError(f"{name!r}: expected float32, float16 or bfloat16, got the dtype {dtype}")
    if tensor.device.type == "meta":
        raise ModelError(f"{name!r} is on the device meta, without values: give the model a real one before")
    if tensor.layout != torch.strided or hasattr(tensor, "device_mesh"):
        raise ModelError(
            f"{name!r} is sparse, or spread over several processes (FSDP): expected a plain dense tensor"
        )


def tensor_of(array: NDArray[Any]) -> torch.Tensor:
    """Wrap the array's memory in a tensor, to be read only."""
    bits = array.view(np.int16) if array.dtype == _BFLOAT16 else array
    if not bits.flags.writeable:
        # torch has no read-only memory, and warns.
        bits = np.asarray(_Claimed(bits))
    tensor = torch.from_numpy(bits)
    return tensor.view(torch.bfloat16) if array.dtype == _BFLOAT16 else tensor


class _Claimed:
    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array
        interface = dict(array.__array_interface__)
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}
