"""Chunk messages written and read by hand: one copy per chunk, the same bytes as the generated code.

Protobuf's own classes copy a payload once more on each side. Here a chunk's message is the few header bytes of its
fields joined with the data, and parsing gives a view of the received message. Only the canonical form (which every
protobuf library writes) is read by hand; other legal forms go to the generated parser, and illegal ones raise
FrameError.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from pswire.v1 import shard_pb2

# On loopback the best of 64 KiB to 16 MiB lies between 1 and 4 MiB. A multiple of every element's size, so that a chunk
# never cuts an element of an elementwise codec.
CHUNK_BYTES: Final = 2 * 2**20

Message = bytes | memoryview
Data = bytes | bytearray | memoryview | NDArray[Any]

# Up to this size, the generated parser's copy of a chunk costs less than reading fields by hand.
SMALL: Final = 1024

# Tags: field number << 3 | wire type (0 varint, 2 length-delimited).
_MESSAGE_CHUNK_PUSH: Final = 2 << 3 | 2
_MESSAGE_CHUNK_PULL: Final = 1 << 3 | 2
_TOTAL: Final = 2 << 3 | 0
_OFFSET: Final = 1 << 3 | 0
_DATA: Final = 2 << 3 | 2


class FrameError(ValueError):
    """Bytes that are not the expected message."""


class ChunkView(NamedTuple):
    """A piece of a payload: `data` belongs at byte `offset`. Keeps the received message alive."""

    offset: int
    data: memoryview


def pull_chunk(offset: int, data: Data, total: int | None) -> bytes:
    """Return a PullReply with one chunk; `total`, the payload's bytes, belongs in the first one.

    As everywhere in proto3, a total of 0 is not written, so an empty payload's reply has none.
    """
    parts = _chunk_parts(_MESSAGE_CHUNK_PULL, offset, data)
    if total:
        parts += [bytes([_TOTAL]), _varint(total)]
    return b"".join(parts)


def parse_push(message: bytes) -> shard_pb2.PushHeader | ChunkView:
    """Read a PushRequest. Raises FrameError for malformed bytes, and for a message without header and chunk."""
    found = _read_chunk(message, _MESSAGE_CHUNK_PUSH)
    if found is not None and found[1] == len(message):
        return found[0]
    try:
        request = shard_pb2.PushRequest.FromString(message)
    except DecodeError as error:
        raise FrameError(f"expected a PushRequest, got {len(message)} bytes that do not parse") from error
    if request.HasField("header"):
        return request.header
    if request.HasField("chunk"):
        return ChunkView(request.chunk.offset, memoryview(request.chunk.data))
    raise FrameError("expected a PushRequest with a header or a chunk, got one with neither")


def parse_pull(message: bytes) -> tuple[ChunkView, int | None]:
    """Read a PullReply: the chunk, and the payload's bytes, None if absent or 0. Raises FrameError."""
    found = _read_chunk(message, _MESSAGE_CHUNK_PULL)
    if found is not None:
        chunk, end = found
        if end == len(message):
            return chunk, None
        if message[end] == _TOTAL:
            total = _read_varint(message, end + 1)
            if total is not None and total[1] == len(message):
                return chunk, total[0] or None
    try:
        reply = shard_pb2.PullReply.FromString(message)
    except DecodeError as error:
        raise FrameError(f"expected a PullReply, got {len(message)} bytes that do not parse") from error
    return ChunkView(reply.chunk.offset, memoryview(reply.chunk.data)), reply.bytes or None


def split_chunk(message: Message) -> tuple[memoryview, ChunkView | None]:
    """Split a message that may end with a chunk (field 2, as in ExchangeRequest) into the rest and the chunk.

    Without a chunk at the end, the rest is the whole message. Raises FrameError if the fields before it are cut off.
    """
    return _split(message, _MESSAGE_CHUNK_PUSH)


def split_reply(message: Message) -> tuple[memoryview, ChunkView | None]:
    """Split an ExchangeReply, where the chunk is field 1, as `split_chunk` does."""
    return _split(message, _MESSAGE_CHUNK_PULL)


def _split(message: Message, tag: int) -> tuple[memoryview, ChunkView | None]:
    view, at = memoryview(message), 0
    while at < len(message):
        if message[at] == tag:
            found = _read_chunk(message, tag, at)
            if found is not None and found[1] == len(message):
                return view[:at], found[0]
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


def chunk_field(offset: int, data: Data, *, reply: bool = False) -> list[bytes | memoryview]:
    """Return the pieces, to be joined, of a chunk field at the end of an ExchangeRequest or reply."""
    return _chunk_parts(_MESSAGE_CHUNK_PULL if reply else _MESSAGE_CHUNK_PUSH, offset, data)


def chunks(data: Data, size: int = CHUNK_BYTES) -> Iterator[tuple[int, memoryview]]:
    """Cut a payload into (byte offset, view) pairs of at most `size` bytes; none for an empty payload.

    Raises ValueError unless `size` >= 1.
    """
    if size < 1:
        raise ValueError(f"size: expected bytes >= 1, got {size}")
    view = as_bytes(data)
    return ((offset, view[offset : offset + size]) for offset in range(0, view.nbytes, size))


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


def _chunk_parts(tag: int, offset: int, data: Data) -> list[bytes | memoryview]:
    """Return the pieces, to be joined, of a message that holds one chunk; zero fields are left out."""
    view = as_bytes(data)
    head = bytes([_OFFSET]) + _varint(offset) if offset else b""
    if view.nbytes:
        head += bytes([_DATA]) + _varint(view.nbytes)
    return [bytes([tag]) + _varint(len(head) + view.nbytes) + head, view]


def _varint(value: int) -> bytes:
    if not 0 <= value < 2**64:
        raise ValueError(f"expected an unsigned 64-bit number, got {value}")
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


def _read_chunk(message: Message, tag: int, start: int = 0) -> tuple[ChunkView, int] | None:
    """Return a canonical chunk field at `start` and the position after it; None if there is none."""
    if start >= len(message) or message[start] != tag:
        return None
    length = _read_varint(message, start + 1)
    if length is None or length[1] + length[0] > len(message):
        return None
    at, end = length[1], length[1] + length[0]
    offset = 0
    if at < end and message[at] == _OFFSET:
        number = _read_varint(message, at + 1)
        if number is None:
            return None
        offset, at = number
    if at == end:
        return ChunkView(offset, memoryview(b"")), end
    if at > end:
        # The offset ends after the chunk that it should be a part of.
        return None
    size = _read_varint(message, at + 1) if message[at] == _DATA else None
    if size is None or size[1] + size[0] != end:
        return None
    return ChunkView(offset, memoryview(message)[size[1] : end]), end
