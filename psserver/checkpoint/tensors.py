"""float32 arrays in the safetensors format, which other programs read.

The package safetensors writes it too, but from a copy of all arrays; these may be as large as the memory is.
A file is 8 bytes (little-endian) with the length of the header, a header in JSON, and the arrays one after the other.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psserver.checkpoint.errors import CheckpointError
from psserver.checkpoint.files import PIECE, Reader

Floats = NDArray[np.float32]

METADATA = "__metadata__"
# Of a header: some hundred bytes for each array.
LARGEST_HEADER = 64 << 20


def pieces(arrays: Mapping[str, Floats], metadata: Mapping[str, str]) -> Iterator[memoryview]:
    """The file, in pieces. Arrays are not copied, so they must not change until the last one is taken."""
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
    """The arrays of a whole file that `pieces` wrote: those of a `wanted` name. All of it is read, for its digest.
    Raises CheckpointError."""
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
            # Of no bytes, with a length or a number of lengths that no array has.
            raise CheckpointError(
                f"{reader.path}: is no safetensors file as a checkpoint has it: {error}"
            ) from error
        reader.fill(values.reshape(-1).view(np.uint8).data)
        found[name] = values
    if reader.left:
        raise CheckpointError(f"{reader.path}: {reader.left} bytes follow on the last array")
    return found


def _shapes(path: Path, text: bytes, room: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes, in the order in which the arrays lie there without gaps; they fit into `room` bytes."""
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
