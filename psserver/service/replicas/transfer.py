"""A copy of a job's state on one server, as bytes: everything that a primary has executed, for a server without a copy.

It is 8 bytes (little-endian) with the length of a JSON object, that object, and the shard's arrays as a checkpoint has
them (`psserver.checkpoint.tensors`). Nothing is taken up before all bytes have come and their digest is right. Large
arrays do not travel between servers of one machine: the object says where they lie (`lending`).
"""

import hashlib
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray

from psserver.checkpoint import tensors
from psserver.checkpoint.disk import CheckpointError
from psserver.checkpoint.files import Reader
from psserver.checkpoint.manifest import FileFacts
from psserver.service.errors import invalid
from psserver.service.replicas.lending import borrowed
from psserver.service.replicas.wire import PIECE
from psserver.shard import Shard
from psserver.shard.tables import digest
from pswire.transport.segments import SegmentError
from pswire.v1 import shard_pb2

#: Bytes in a second, at most, so that training has most of a core.
RATE: Final = 128e6
#: The limit of the JSON object, which grows with the workers and what they hold.
LARGEST_ABOUT: Final = 64 << 20

Arrays = Mapping[str, NDArray[Any]]


class CopyError(Exception):
    """A copy that cannot be taken up; nothing has changed."""


@dataclass(frozen=True, slots=True)
class WholeCopy:
    """A copy of the first `at` items of the log, executed. Arrays must not change until the last piece is taken."""

    at: int
    about: Mapping[str, Any]
    arrays: Arrays

    def pieces(self, epoch: int) -> Iterator[shard_pb2.CopyPiece]:
        """Yield it in pieces, in order; the last one has the digest of all bytes."""
        text = json.dumps(self.about).encode()
        arrays = tensors.pieces(self.arrays, {})
        head = len(text).to_bytes(8, "little") + text + next(arrays)
        total = len(head) + sum(values.nbytes for values in self.arrays.values())
        whole, offset = hashlib.sha256(), 0
        for data in _evened(chain([memoryview(head)], arrays)):
            whole.update(data)
            piece = shard_pb2.CopyPiece(epoch=epoch, at=self.at, bytes=total, offset=offset, data=data)
            offset += len(data)
            if offset == total:
                piece.sha256 = whole.hexdigest()
            yield piece


def _evened(chunks: Iterable[memoryview]) -> Iterator[bytes]:
    """Yield the bytes of all chunks, `PIECE` of them at a time: tables have many small arrays."""
    held, room = list[memoryview](), PIECE
    for chunk in chunks:
        while len(chunk):
            part, chunk = chunk[:room], chunk[room:]
            held.append(part)
            room -= len(part)
            if not room:
                yield b"".join(held)
                held, room = [], PIECE
    if held:
        yield b"".join(held)


class ArrivingCopy:
    """A copy of the first `at` items under way to this server, of `total` bytes. The loop's thread owns it."""

    def __init__(self, piece: shard_pb2.CopyPiece) -> None:
        self.at, self.total = int(piece.at), int(piece.bytes)
        self._data, self._sha256 = io.BytesIO(), ""

    def take(self, piece: shard_pb2.CopyPiece) -> bool:
        """Take the next piece; return whether it was the last. Raises Refused for one that does not follow."""
        got, end = self._data.tell(), piece.offset + len(piece.data)
        if (piece.at, piece.bytes, piece.offset) != (self.at, self.total, got) or end > self.total:
            raise invalid(
                f"expected byte {got} of {self.total} of the copy behind item {self.at}, got bytes {piece.offset} to "
                f"{end} of {piece.bytes} behind item {piece.at}"
            )
        self._data.write(piece.data)
        self._sha256 = piece.sha256
        return end == self.total

    def read(self) -> WholeCopy:
        """Return the whole copy, and keep none of its bytes. From any thread. Raises CopyError for a damaged one, and
        SegmentError if arrays are gone that the other server has lent."""
        self._data.seek(0)
        reader = Reader(self._data, Path("the copy"), self.total)
        try:
            length = int.from_bytes(reader.take(8), "little")
            if length > LARGEST_ABOUT:
                raise CopyError(f"expected at most {LARGEST_ABOUT} bytes about a copy, got {length}")
            about = json.loads(reader.take(length))
            arrays = tensors.read(reader)
            reader.check(FileFacts(self.total, self._sha256))
            arrays.update(borrowed(about.pop("lent", {})))
        except SegmentError:
            raise
        except (CheckpointError, ValueError, TypeError) as error:
            raise CopyError(str(error)) from error
        finally:
            self._data = io.BytesIO()
        return WholeCopy(self.at, about, arrays)


def digest_of(shard: Shard, turn: int) -> bytes:
    """Return a cheap digest of the newest version, four bytes for each slice of the plan, in order, and behind them for
    each table. Nothing may write to the shard meanwhile. `turn`: which rows of large tables are looked at."""
    values, slices = shard.arena.values(shard.version), shard.layout.slices
    dense = [] if values is None else [zlib.crc32(values[s.offset : s.offset + s.size].data) for s in slices]
    found = [*dense, *(digest.digest_of(table, turn) for table in shard.tables.tables)]
    return b"".join(crc.to_bytes(4, "little") for crc in found)


def digested(shard: Shard) -> int:
    """Return the bytes that `digest_of` passes over, about."""
    rows = sum(min(table.count, digest.ROWS) * table.row_bytes for table in shard.tables.tables)
    return shard.layout.nbytes + rows


def first_difference(shard: Shard, own: bytes, other: bytes) -> str:
    """Return the name of the first variable or table of which two digests of a version differ."""
    variables = [shard.plan.variables[each.variable].name for each in shard.layout.slices]
    for number, name in enumerate([*variables, *(f"table {spec.name}" for spec in shard.plan.tables)]):
        part = slice(4 * number, 4 * number + 4)
        if own[part] != other[part]:
            return name
    return "another number of variables"
