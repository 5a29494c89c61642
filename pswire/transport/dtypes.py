"""How elements travel: float32 as they are, bfloat16 and float16 rounded to nearest even."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pswire.nearest import did_you_mean
from pswire.v1 import model_pb2

# From the name, as in configuration files, to the number in the messages.
WIRE: Final[dict[str, "model_pb2.WireDtype.ValueType"]] = {
    "float32": model_pb2.WIRE_DTYPE_FLOAT32,
    "bfloat16": model_pb2.WIRE_DTYPE_BFLOAT16,
    "float16": model_pb2.WIRE_DTYPE_FLOAT16,
}
_NAMES: Final = {int(number): name for name, number in WIRE.items()}
_ITEMSIZE: Final = {"float32": 4, "bfloat16": 2, "float16": 2}

Bytes = bytes | bytearray | memoryview


class WireDtypeError(ValueError):
    """A wire dtype that is not known, or a payload that does not fit it."""


def itemsize(dtype: str) -> int:
    """Bytes per element on the wire. Raises WireDtypeError for an unknown name."""
    if dtype not in _ITEMSIZE:
        raise WireDtypeError(f"unknown wire dtype {dtype!r}{did_you_mean(dtype, WIRE)}")
    return _ITEMSIZE[dtype]


def wire_name(number: int) -> str:
    """The name for a message's number. Raises WireDtypeError when it is unspecified or unknown."""
    name = _NAMES.get(number)
    if name is None:
        raise WireDtypeError(f"unknown wire dtype number {number}; known: {', '.join(WIRE)}")
    return name


def array_dtype(dtype: str) -> np.dtype[Any]:
    """Of arrays that hold elements as they travel. Raises WireDtypeError for an unknown name."""
    itemsize(dtype)
    return _bfloat16() if dtype == "bfloat16" else np.dtype(dtype)


def to_wire(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """The array whose memory is the payload of `values` (float32, or `array_dtype` already), of the same shape.

    What needs no rounding is returned without a copy. bfloat16 comes as its bits (uint16), because
    numpy does not export bfloat16 as a buffer. Numbers beyond float16's range become infinite,
    which the receiver refuses. Raises WireDtypeError for an unknown name.
    """
    itemsize(dtype)
    if dtype == "float32":
        return values.astype("<f4", copy=False)
    if dtype == "bfloat16":
        return values.astype(_bfloat16(), copy=False).view(np.uint16).astype("<u2", copy=False)
    with np.errstate(over="ignore"):
        return values.astype("<f2", copy=False)


def from_wire(buffer: Bytes, dtype: str, out: NDArray[Any]) -> None:
    """Decode a payload, or a part of one that begins and ends between elements, into `out`: float32, or
    an array of `array_dtype`, which takes the elements as they came.

    Raises WireDtypeError for an unknown name, or when `buffer` does not hold exactly `out.size` elements.
    """
    nbytes = memoryview(buffer).nbytes
    if nbytes != out.size * itemsize(dtype):
        raise WireDtypeError(
            f"expected {out.size * itemsize(dtype)} bytes for {out.size} {dtype} elements, got {nbytes}"
        )
    if out.dtype != np.float32:
        out.view(np.uint16)[...] = np.frombuffer(buffer, "<u2").reshape(out.shape)
    elif dtype == "bfloat16":
        bits = np.frombuffer(buffer, "<u2").astype(np.uint16, copy=False)
        out[...] = bits.view(_bfloat16()).reshape(out.shape)
    else:
        out[...] = np.frombuffer(buffer, "<f4" if dtype == "float32" else "<f2").reshape(out.shape)


def _bfloat16() -> np.dtype[Any]:
    # Imported on use: most runs never need it, and every process pays for imports.
    import ml_dtypes

    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype
