"""Payloads between numpy and TensorFlow in the dtype in which they travel: no conversion on the host.

numpy and TensorFlow do not hand each other bfloat16; its bits (uint16) they do.
Casts are in the graph: on the GPU when there is one.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from psworker.data.payloads import Payload, Pieces

# Bytes from which a copy takes longer than to avoid one.
LARGE = 1 << 20


def tensor_of(flat: NDArray[Any]) -> Any:
    """A flat payload (float32, float16, bfloat16) as a tensor of its own, copied; bfloat16 as its bits."""
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
    """A result, of flat tensors that lie one behind the other: to be copied from the device (where it is not the CPU's
    memory already) when it is asked for."""
    if len(parts) == 1:
        return partial(array_of, parts[0])
    dtype = tf.bfloat16 if parts[0].dtype == tf.uint16 else parts[0].dtype
    elements = sum(int(part.shape[0]) for part in parts)
    return Pieces([partial(array_of, part) for part in parts], elements, dtype.as_numpy_dtype)


def array_of(tensor: Any) -> NDArray[Any]:
    """A flat tensor's memory where it is the CPU's, else a copy of it."""
    # Not numpy(), which copies what lies in the CPU's memory.
    array = np.asarray(memoryview(tensor))
    return array.view(tf.bfloat16.as_numpy_dtype) if array.dtype == np.uint16 else array
