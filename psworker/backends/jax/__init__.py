"""A pytree of JAX arrays as a `psworker.backends.Model`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from pswire.model.plan import VariableSpec
from psworker.backends import Landing, ModelError

# Two workers may share a GPU: JAX, which has not begun to use it, takes its memory as it needs it.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

# Bytes, as XLA aligns arrays.
_ALIGNED = 64
PROCESSES = (
    "jax.distributed joins the devices of several processes, and here each worker is one process with one device: "
    "leave jax.distributed.initialize() out"
)
_DTYPES = ("float32", "float16", "bfloat16")


class JaxModel:
    """`params` are trained; of `state` (BatchNorm's averages) floating arrays travel, and others stay in this process.

    Names are the ways to the leaves, "dense/kernel"; those of the state begin with "state/". `params` and `state` are
    the present trees. Raises ModelError for what servers cannot hold.
    """

    backend = "jax"

    def __init__(self, params: Any, state: Any = None) -> None:
        if jax.process_count() > 1:
            raise ModelError(PROCESSES)
        self.params, self.state = params, state
        named, self.structure = jax.tree_util.tree_flatten_with_path(params)
        if not named:
            raise ModelError("params has no array: nothing is to be trained")
        beside, self._beside = jax.tree_util.tree_flatten_with_path(state)
        trained = [(_name(path, "params"), leaf) for path, leaf in named]
        moving = [
            (f"state/{_name(path, 'state')}", leaf) if _floating(leaf) else None for path, leaf in beside
        ]
        # Which leaves of the state travel.
        self._travels = [each is not None for each in moving]
        found = [*trained, *(each for each in moving if each is not None)]
        for name, leaf in found:
            _check(name, leaf)
        self.names = [name for name, _ in trained]
        self.specs: Sequence[VariableSpec] = tuple(
            VariableSpec(
                name, tuple(leaf.shape), str(leaf.dtype), "trainable" if place < len(trained) else "state"
            )
            for place, (name, leaf) in enumerate(found)
        )
        # A step may have been given the memory of the arrays themselves (donate_argnums), and they tell nothing then.
        self._where = shardings(self._all())
        self._before: list[Any] = []

    @property
    def device(self) -> str:
        devices = {device for each in self._where for device in each.device_set}
        return ",".join(sorted(f"{each.platform}:{each.id}" for each in devices))

    def values(self) -> list[NDArray[Any]]:
        return [np.asarray(leaf, np.float32) for leaf in self._all()]

    def put(self, arrays: Sequence[NDArray[Any]]) -> None:
        leaves, count = self._all(), self.structure.num_leaves
        # The state twice, for a step may be given the memory of what it gets.
        found = placed([*arrays, *arrays[count:]], [*self._where, *self._where[count:]])
        fresh = [
            array if array.dtype == leaf.dtype else array.astype(leaf.dtype)
            for array, leaf in zip(found, [*leaves, *leaves[count:]], strict=True)
        ]
        self.params = jax.tree_util.tree_unflatten(self.structure, fresh[:count])
        self._before = fresh[len(leaves) :]
        moved, leaves = iter(fresh[count:]), jax.tree_util.tree_leaves(self.state)
        leaves = [
            next(moved) if travels else leaf for travels, leaf in zip(self._travels, leaves, strict=True)
        ]
        self.state = jax.tree_util.tree_unflatten(self._beside, leaves)

    def check(self, tree: Any, what: str) -> None:
        """Raise ModelError where `tree` ("gradients", "state") has other branches than what it is of."""
        expected = self._beside if what == "state" else self.structure
        got = jax.tree_util.tree_structure(tree)
        if got != expected:
            raise ModelError(f"{what}: expected a tree as {expected}, got {got}")

    def leaves(self, tree: Any) -> list[Any]:
        """List the arrays of a tree like `params`, in the order of `specs`. Raises ModelError for one that is spread
        over devices, or is not of floating numbers."""
        leaves = [jnp.asarray(leaf) for leaf in jax.tree_util.tree_leaves(tree)]
        for name, leaf in zip(self.names, leaves, strict=True):
            what = f"the gradient of {name!r}"
            _check_device(what, leaf)
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                raise ModelError(f"{what}: expected floating numbers, got the dtype {leaf.dtype}")
        return leaves

    def check_kept(self, tree: Any, what: str, instead: str) -> None:
        """Raise ModelError where a step took the memory of `tree` (`what`); `instead` says what to do."""
        if any(isinstance(leaf, jax.Array) and leaf.is_deleted() for leaf in jax.tree_util.tree_leaves(tree)):
            raise ModelError(f"{what} was donated to a step (donate_argnums), and is needed here: {instead}")

    def changes(self) -> list[Any]:
        now = self._all()[self.structure.num_leaves :]
        for spec, after in zip(self.specs[self.structure.num_leaves :], now, strict=True):
            if tuple(after.shape) != spec.shape:
                raise ModelError(
                    f"{spec.name!r}: expected the shape {list(spec.shape)}, got {list(after.shape)}"
                )
        return [
            jnp.asarray(after, jnp.float32) - jnp.asarray(before, jnp.float32)
            for after, before in zip(now, self._before, strict=True)
        ]

    def fetch(self, value: Any, start: int, stop: int, dtype: np.dtype[Any]) -> Landing:
        return fetch(value, start, stop, dtype)

    def _all(self) -> list[Any]:
        leaves = zip(jax.tree_util.tree_leaves(self.state), self._travels, strict=True)
        return [*jax.tree_util.tree_leaves(self.params), *(leaf for leaf, travels in leaves if travels)]


def fetch(value: Any, start: int, stop: int, dtype: np.dtype[Any]) -> Landing:
    """Implement `psworker.backends.Model.fetch`."""
    rows = value if value.ndim == 0 or stop - start == value.shape[0] else value[start:stop]
    return landing(rows.astype(dtype))


def landing(array: Any) -> Landing:
    """Begin to bring an array of one device to the host, through page-locked memory."""
    if lies_on(array) in PINNED:
        array = jax.device_put(array, array.sharding.with_memory_kind("pinned_host"))
    array.copy_to_host_async()
    return lambda: np.asarray(array).reshape(-1)


# Platforms with page-locked memory of the host beside that of the device.
PINNED = {"gpu", "cuda", "rocm"}


def lies_on(array: Any) -> str:
    """Return the platform of an array's device."""
    [device] = array.devices()
    return str(device.platform)


def _name(path: Any, whole: str) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/") or whole


def _floating(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and bool(jnp.issubdtype(leaf.dtype, jnp.inexact))


def shardings(leaves: Sequence[Any]) -> list[Any]:
    """Where arrays are, or will be: those that are not JAX's on its first device."""
    own = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return [each.sharding if isinstance(each, jax.Array) else own for each in leaves]


def placed(arrays: Sequence[NDArray[Any]], where: Sequence[Any]) -> list[Any]:
    """Copy `arrays`, whose memory is used again behind this call, once for each sharding of `where`."""
    if any(device.platform == "cpu" for each in where for device in each.device_set):
        # There JAX goes on with aligned memory as it is: let this be its own.
        arrays = [_aligned(each) for each in arrays]
    found = jax.device_put(list(arrays), where)
    jax.block_until_ready(found)
    return found


def _aligned(array: NDArray[Any]) -> NDArray[Any]:
    memory = np.empty(array.nbytes + _ALIGNED, np.uint8)
    start = -memory.ctypes.data % _ALIGNED
    copied = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    np.copyto(copied, array)
    return copied


def _check(name: str, leaf: Any) -> None:
    # A Keras model has a dtype, too.
    dtype = str(leaf.dtype) if hasattr(leaf, "shape") and hasattr(leaf, "dtype") else type(leaf).__name__
    if dtype.startswith("complex"):
        raise ModelError(
            f"{name!r} has dtype {dtype}, and servers train real numbers: hold its real and imaginary parts in two "
            "arrays"
        )
    if dtype == "float64":
        raise ModelError(
            f"{name!r} has dtype float64, and servers reckon in float32: leave jax_enable_x64 out, or cast params"
        )
    if dtype not in _DTYPES:
        raise ModelError(
            f"{name!r}: expected an array of {', '.join(_DTYPES)}, got {dtype}: what is not trained belongs into "
            "`state`, or stays out (equinox.partition, nnx.split)"
        )
    if isinstance(leaf, jax.Array):
        _check_device(repr(name), leaf)


def _check_device(what: str, leaf: Any) -> None:
    count = len(leaf.devices())
    if count > 1:
        raise ModelError(f"{what} lies on {count} devices: expected arrays of one device in each worker")
