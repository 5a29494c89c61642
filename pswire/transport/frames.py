"""Messages with a chunk of a payload, written and read by hand: one copy per chunk, the bytes of the generated code.

Protobuf's own classes copy a payload once more on each side. Here a message is the bytes of its other fields joined
with those of its field `chunk`, which has the highest number and so comes last, and parsing gives a view of the
received message. A small message, or one with its chunk elsewhere, goes to the generated parser.
"""

from collections.abc import Iterator
from typing import Any, Final, TypeVar

import numpy as np
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Generated
from numpy.typing import NDArray

# On loopback the best of 64 KiB to 16 MiB lies between 1 and 4 MiB. A multiple of every element's size, so that a chunk
# never cuts an element of an elementwise codec.
CHUNK_BYTES: Final = 2 * 2**20

Message = bytes | memoryview
Data = bytes | bytearray | memoryview | NDArray[Any]
G = TypeVar("G", bound=Generated)

# Up to this size, the generated parser's copy of a chunk costs less than reading fields by hand.
SMALL: Final = 1024

# The tag of `chunk`: field number << 3 | wire type (0 varint, 2 length-delimited).
_TAG: Final = 15 << 3 | 2


class FrameError(ValueError):
    """Bytes that are not the expected message."""


def chunk_field(data: Data) -> list[bytes | memoryview]:
    """Return the pieces, to be joined, of the field `chunk` at the end of a message."""
    view = as_bytes(data)
    return [bytes([_TAG]) + _varint(view.nbytes), view]


def parsed(kind: type[G], message: Message, most: int | None = None) -> tuple[G, memoryview | None]:
    """Return the message, and its chunk as a view of it, if it has one.

    `most`: bytes of its other fields, at most. Raises FrameError for more, and for bytes that do not parse.
    """
    rest, chunk = (message, None) if len(message) <= SMALL else split_chunk(message)
    if most is not None and len(rest) > most:
        raise FrameError(f"expected at most {most} bytes beside a chunk at the end, got {len(rest)}")
    try:
        found = kind.FromString(bytes(rest))
    except DecodeError as error:
        name = kind.DESCRIPTOR.full_name
        raise FrameError(f"expected a {name}, got {len(message)} bytes that do not parse") from error
    if chunk is None and found.HasField("chunk"):
        chunk = memoryview(found.chunk)  # type: ignore[attr-defined]
    return found, chunk


def split_chunk(message: Message) -> tuple[memoryview, memoryview | None]:
    """Split a message into its other fields and the chunk at its end.

    Without a chunk at the end, the rest is the whole message. Raises FrameError if the fields before it are cut off.
    """
    view, at = memoryview(message), 0
    while at < len(message):
        if message[at] == _TAG:
            length = _read_varint(message, at + 1)
            if length is not None and length[1] + length[0] == len(message):
                return view[:at], view[length[1] :]
        skipped = _skip_field(message, at)
        if skipped is None:
            raise FrameError(f"expected whole fields, got {len(message)} bytes that end within one")
        at = skipped
    return view, None


def _skip_field(message: Message, at: int) -> int | None:
    """Return the position after the field at `at`; None if the bytes end first or its wire type is not in use."""
    if at + 1 < len(message) and message[at] < 0x80 and message[at] & 7 == 2 and message[at + 1] < 0x80:
        # The common case: a short field with a small number, one byte each.
        end = at + 2 + message[at + 1]
        return end if end <= len(message) else None
    key = _read_varint(message, at)
    if key is None:
        return None
    number = _read_varint(message, key[1])
    if number is None or key[0] & 7 not in (0, 2):
        return None
    end = number[1] + (number[0] if key[0] & 7 == 2 else 0)
    return end if end <= len(message) else None


def chunks(data: Data, size: int = CHUNK_BYTES) -> Iterator[memoryview]:
    """Cut a payload into views of at most `size` bytes; none for an empty payload.

    Raises ValueError unless `size` >= 1.
    """
    if size < 1:
        raise ValueError(f"size: expected bytes >= 1, got {size}")
    view = as_bytes(data)
    return (view[at : at + size] for at in range(0, view.nbytes, size))


def as_bytes(data: Data) -> memoryview:
    """Return a view of contiguous memory, or of an array of any dtype, as bytes.

    Raises ValueError if the memory is not C-contiguous, because a view cannot change that.
    """
    if isinstance(data, np.ndarray):
        if not data.flags.c_contiguous:
            raise ValueError("expected a C-contiguous array; copy it first")
        return data.reshape(-1).view(np.uint8).data
    view = memoryview(data)
    if not view.c_contiguous:
        raise ValueError("expected contiguous memory; copy it first")
    # A shape with a 0 in it cannot be cast.
    return view.cast("B") if view.nbytes else memoryview(b"")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(message: Message, at: int) -> tuple[int, int] | None:
    """Return (value, position after it), or None if the bytes end first or it needs more than 63 bits."""
    value = 0
    for count, byte in enumerate(message[at : at + 9]):
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return value, at + count + 1
    return None
