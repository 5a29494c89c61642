"""float32 arrays in the safetensors format, which other programs read.

The safetensors package writes it from a copy of all arrays; this module writes it in pieces, because the arrays may
fill the memory. A file is 8 bytes (little-endian) with the length of the header, a header in JSON, and the arrays in
order.
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

Floats = NDArray[np.float32]

METADATA = "__metadata__"
# The limit of a header, which has about a hundred bytes for each array.
LARGEST_HEADER = 64 << 20


def pieces(arrays: Mapping[str, Floats], metadata: Mapping[str, str]) -> Iterator[memoryview]:
    """Yield the file in pieces. Arrays are not copied, so they must not change until the last piece is taken."""
    header: dict[str, Any] = {METADATA: dict(metadata)}
    offset = 0
    for name, values in arrays.items():
        assert values.dtype == np.float32 and values.flags.c_contiguous, name
        header[name] = {
            "dtype": "F32",
            "shape": list(values.shape),
            "data_offsets": [offset, offset + values.nbytes],
        }
        offset += values.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    # Arrays begin at a multiple of 8.
    text += b" " * (-len(text) % 8)
    yield memoryview(len(text).to_bytes(8, "little") + text)
    for values in arrays.values():
        flat = values.reshape(-1).view(np.uint8).data
        for start in range(0, len(flat), PIECE):
            yield flat[start : start + PIECE]


def read(reader: Reader, wanted: Callable[[str], bool] = lambda _: True) -> dict[str, Floats]:
    """Read the `wanted` arrays of a file that `pieces` wrote. The whole file is read, for its digest.

    Raises CheckpointError.
    """
    length = int.from_bytes(reader.take(8), "little")
    if length > LARGEST_HEADER:
        raise CheckpointError(
            f"{reader.path}: expected a header of at most {LARGEST_HEADER} bytes, got {length}"
        )
    found: dict[str, Floats] = {}
    for name, shape in _shapes(reader.path, reader.take(length), reader.left):
        if not wanted(name):
            reader.skip(4 * math.prod(shape))
            continue
        try:
            values = np.empty(shape, np.float32)
        except ValueError as error:
            # Empty, but with a dimension or a number of dimensions that no array can have.
            raise CheckpointError(
                f"{reader.path}: is no safetensors file as a checkpoint has it: {error}"
            ) from error
        reader.fill(values.reshape(-1).view(np.uint8).data)
        found[name] = values
    if reader.left:
        raise CheckpointError(f"{reader.path}: {reader.left} bytes follow on the last array")
    return found


def _shapes(path: Path, text: bytes, room: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield names and shapes, in the order of the arrays, which lie without gaps and fit into `room` bytes."""
    try:
        header = json.loads(text)
        begin = 0
        for name, about in header.items():
            if name == METADATA:
                continue
            shape = tuple(about["shape"])
            size = 4
            for length in shape:
                if type(length) is not int or length < 0:
                    raise ValueError(f"{name!r} has the shape {shape}")
                size *= length
            if (
                about["dtype"] != "F32"
                or about["data_offsets"] != [begin, begin + size]
                or begin + size > room
            ):
                raise ValueError(f"{name!r} is {about}, expected float32 at byte {begin} of {room}")
            begin += size
            yield name, shape
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path}: is no safetensors file as a checkpoint has it: {error}") from error
