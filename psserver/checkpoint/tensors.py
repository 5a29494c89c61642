"""Arrays in the safetensors format, which other programs read: float32, and of tables whole numbers.

The safetensors package writes it from a copy of all arrays; this module writes it in pieces, because the arrays may
fill the memory. A file is 8 bytes (little-endian) with the length of the header, a header in JSON, and the arrays in
order.

Rows of tables are written while they are being copied, so that no header can say beforehand how many there are. Their
file is a series of such files, one directly behind the other, each of which has some rows: `read_series`.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psserver.checkpoint.disk import CheckpointError
from psserver.checkpoint.files import PIECE, Reader

Array = NDArray[Any]

# The format's names of dtypes. Arrays of 8 bytes come first, so that each begins at a multiple of its size.
_NAMES: Mapping[np.dtype[Any], str] = {
    np.dtype(np.uint64): "U64",
    np.dtype(np.int64): "I64",
    np.dtype(np.float32): "F32",
    np.dtype(np.uint32): "U32",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}

METADATA = "__metadata__"
# The limit of a header, which has about a hundred bytes for each array.
LARGEST_HEADER = 64 << 20


def pieces(arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> Iterator[memoryview]:
    """Yield the file in pieces. Arrays are not copied, so they must not change until the last piece is taken."""
    header: dict[str, Any] = {METADATA: dict(metadata)}
    offset = 0
    ordered = sorted(arrays.items(), key=lambda item: -item[1].itemsize)
    for name, values in ordered:
        assert values.flags.c_contiguous, name
        header[name] = {
            "dtype": _NAMES[values.dtype],
            "shape": list(values.shape),
            "data_offsets": [offset, offset + values.nbytes],
        }
        offset += values.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    # Arrays begin at a multiple of 8.
    text += b" " * (-len(text) % 8)
    yield memoryview(len(text).to_bytes(8, "little") + text)
    for _, values in ordered:
        flat = values.reshape(-1).view(np.uint8).data
        for start in range(0, len(flat), PIECE):
            yield flat[start : start + PIECE]


def read(reader: Reader, wanted: Callable[[str], bool] = lambda _: True) -> dict[str, Array]:
    """Read the `wanted` arrays of a file that `pieces` wrote. The whole file is read, for its digest.

    Raises CheckpointError.
    """
    found = _read_next(reader, wanted)
    if reader.left:
        raise CheckpointError(f"{reader.path}: {reader.left} bytes follow on the last array")
    return found


def read_series(reader: Reader) -> list[dict[str, Array]]:
    """Read a series of files that `pieces` wrote, at least one. Raises CheckpointError."""
    series = [_read_next(reader)]
    while reader.left:
        series.append(_read_next(reader))
    return series


def _read_next(reader: Reader, wanted: Callable[[str], bool] = lambda _: True) -> dict[str, Array]:
    length = int.from_bytes(reader.take(8), "little")
    if length > LARGEST_HEADER:
        raise CheckpointError(
            f"{reader.path}: expected a header of at most {LARGEST_HEADER} bytes, got {length}"
        )
    found: dict[str, Array] = {}
    for name, shape, dtype in _shapes(reader.path, reader.take(length), reader.left):
        if not wanted(name):
            reader.skip(dtype.itemsize * math.prod(shape))
            continue
        try:
            values = np.empty(shape, dtype)
        except ValueError as error:
            # Empty, but with a dimension or a number of dimensions that no array can have.
            raise CheckpointError(
                f"{reader.path}: is no safetensors file as a checkpoint has it: {error}"
            ) from error
        reader.fill(values.reshape(-1).view(np.uint8).data)
        found[name] = values
    return found


def _shapes(path: Path, text: bytes, room: int) -> Iterator[tuple[str, tuple[int, ...], np.dtype[Any]]]:
    """Yield names, shapes and dtypes, in the order of the arrays, which lie without gaps and fit into `room` bytes."""
    try:
        header = json.loads(text)
        begin = 0
        for name, about in header.items():
            if name == METADATA:
                continue
            shape, dtype = tuple(about["shape"]), _DTYPES.get(about["dtype"])
            if dtype is None:
                raise ValueError(f"{name!r} is {about}, expected one of {', '.join(_DTYPES)}")
            size = dtype.itemsize
            for length in shape:
                if type(length) is not int or length < 0:
                    raise ValueError(f"{name!r} has the shape {shape}")
                size *= length
            if about["data_offsets"] != [begin, begin + size] or begin + size > room:
                raise ValueError(f"{name!r} is {about}, expected {size} bytes at byte {begin} of {room}")
            begin += size
            yield name, shape, dtype
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path}: is no safetensors file as a checkpoint has it: {error}") from error
