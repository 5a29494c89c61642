"""Flat payloads in TensorFlow: casts from and to wire dtypes, and where each variable lies in the payloads of a plan.

numpy and TensorFlow do not exchange bfloat16, so its bits travel between them as uint16. Casts are part of the graph:
on a GPU they run there, and nothing is converted on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from pswire.model.plan import Plan
from psworker.backends import Landing, neighbours, places
from psworker.data.payloads import Payload, Pieces

# Bytes from which a copy takes longer than avoiding one.
LARGE = 1 << 20


def tensor_of(flat: NDArray[Any]) -> Any:
    """Copy a flat payload (float32, float16, bfloat16) to a tensor; bfloat16 as its bits."""
    bits = flat.view(np.uint16) if flat.dtype == tf.bfloat16.as_numpy_dtype else flat
    if bits.nbytes < LARGE or not tf.executing_eagerly():
        return tf.convert_to_tensor(bits)
    # `convert_to_tensor` copies in numpy, to where TensorFlow then has to copy it again: numpy does not align for it.
    with tf.device("CPU:0"):
        shared = tf.__internal__.EagerTensor(bits, tf.constant(0).device, None)
        return tf.raw_ops.DeepCopy(x=shared)


def widened(tensor: Any) -> Any:
    """In the graph: as float32."""
    if tensor.dtype == tf.uint16:
        tensor = tf.bitcast(tensor, tf.bfloat16)
    return tf.cast(tensor, tf.float32)


def rounded(tensor: Any, dtype: Any) -> Any:
    """In the graph: float32, to nearest even, as `dtype` (that of a `tensor_of`)."""
    if dtype == tf.uint16:
        return tf.bitcast(tf.cast(tensor, tf.bfloat16), tf.uint16)
    return tf.cast(tensor, dtype)


def payload_of(parts: list[Any]) -> Payload:
    """Make the payload of flat tensors that lie one behind the other: to be copied from the device (where it is not the
    CPU's memory already) when it is asked for."""
    if len(parts) == 1:
        return landing(parts[0])
    dtype = tf.bfloat16 if parts[0].dtype == tf.uint16 else parts[0].dtype
    elements = sum(int(part.shape[0]) for part in parts)
    return Pieces([landing(part) for part in parts], elements, dtype.as_numpy_dtype)


def landing(tensor: Any) -> Landing:
    """Begin to bring a flat tensor to the host: TensorFlow copies through page-locked memory, and waits for it, which a
    thread does here, part after part."""
    if on_host(tensor):
        return partial(array_of, tensor)
    return _COPIES.submit(array_of, tensor).result


_COPIES = ThreadPoolExecutor(1, "device-copies")


def on_host(tensor: Any) -> bool:
    return ":CPU:" in tensor.device


def array_of(tensor: Any) -> NDArray[Any]:
    """Return a flat tensor's memory where it is the CPU's, else a copy of it."""
    # Not numpy(), which copies what lies in the CPU's memory.
    array = np.asarray(memoryview(tensor))
    return array.view(tf.bfloat16.as_numpy_dtype) if array.dtype == np.uint16 else array


class FlatLayout:
    """Where the elements of every variable lie in the payloads of `plan`, one per server: [trainable | state]."""

    def __init__(self, plan: Plan, variables: Sequence[Any]) -> None:
        """`variables`: TensorFlow's, in the plan's order."""
        self._plan = plan
        self._variables = variables
        self._pieces = places(plan)

    def cut(self, flats: list[Any], first: int = 0) -> list[Any]:
        """Payloads to one tensor per variable from number `first` on, in its own shape and dtype."""
        values = []
        for variable, pieces in zip(self._variables[first:], self._pieces[first:], strict=True):
            parts = [widened(flats[server][start:stop]) for server, start, stop in pieces]
            whole = parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)
            values.append(tf.cast(tf.reshape(whole, variable.shape), variable.dtype))
        return values

    def join(self, values: list[Any], dtypes: list[Any]) -> list[list[Any]]:
        """One float32 tensor per variable to payloads of `dtypes`: each shard's rows, in the order of its slices.

        Each payload is a list of parts that lie one behind the other, grouped by `neighbours`.
        """
        specs = self._plan.variables
        rows = [tf.reshape(value, [spec.rows, -1]) for value, spec in zip(values, specs, strict=True)]
        payloads = []
        for shard, dtype in zip(self._plan.shards, dtypes, strict=True):
            parts = [rows[piece.variable][piece.start : piece.stop] for piece in shard.slices]
            flat = [rounded(tf.reshape(part, [-1]), dtype) for part in parts]
            runs = neighbours([piece.size for piece in shard.slices])
            joined = [
                flat[run[0]] if len(run) == 1 else tf.concat([flat[k] for k in run], axis=0) for run in runs
            ]
            payloads.append(joined or [tf.zeros([0], dtype)])
        return payloads
