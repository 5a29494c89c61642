"""Codecs for gradients on thin links: a few bits per element, a scale per block, and error feedback.

A block is a run of elements in one row (along axis 0) of a variable. Rows are never divided between servers, so any
number of servers gives the same blocks and the same bits. Rows of fewer than `SHORTEST` elements (such as biases) and
state variables travel as float32. Blocks follow each other in the order of the elements, each as its float32 scale and
then its levels.

    int8    blocks of 1,024; level = nearest integer to w / scale, scale = max |w| / 127     1 byte per element
    int4    blocks of 64; scale = max |w| / 7; two levels per byte                           0.56
    top-k   blocks of 4,096; the 64th part with the largest |w|, as int8, with their places  0.05

Error feedback (F. Seide et al., "1-bit stochastic gradient descent", Interspeech 2014, section 3.1; S. U. Stich et al.,
"Sparsified SGD with memory", NeurIPS 2018, algorithm 1): what encoding takes from one payload is added to the next,
w = g + e, e' = w - decoded(w). All of it is float32 arithmetic of single operations, with the same bits everywhere.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pswire.model.groups import GroupPart
from pswire.model.plan import ShardLayout
from pswire.transport import frames
from pswire.transport.codecs import Array, Bytes, Codec, Decoder, Encoder, NotFinite, WireDtypeError
from pswire.v1 import model_pb2

Floats = NDArray[np.float32]
Octets = NDArray[np.uint8]

SHORTEST: Final = 32
SCALE: Final = 4
# Top-k sends one in this many elements of a block.
PART: Final = 64


@dataclass(frozen=True, slots=True)
class BlockRun:
    """Rows of one variable on a server: elements [start, start + rows * width) of its payload."""

    start: int
    rows: int
    width: int
    coded: bool


def runs(layout: ShardLayout) -> Iterator[BlockRun]:
    """Yield the parts of a payload, in order."""
    for piece in layout.slices:
        rows = piece.stop - piece.start
        width = piece.size // rows
        yield BlockRun(piece.offset, rows, width, width >= SHORTEST and piece.offset < layout.trainable)


class BlockCodec(Codec):
    """A codec with a scale per block. `block`: the most elements that share a scale."""

    scaled = True
    remembers = True

    def __init__(self, name: str, number: "model_pb2.WireDtype.ValueType", block: int) -> None:
        self.name, self.number, self.block = name, number, block

    @abstractmethod
    def record(self, elements: int) -> int:
        """Return the bytes of a block of this many elements."""

    @abstractmethod
    def encode_rows(self, values: Floats, residual: Floats, width: int, out: Octets, left: Floats) -> int:
        """Encode the sums of `values` and `residual`, and write what that takes from them to `left`.

        Returns the place of the first sum that is not finite, or -1.
        """

    @abstractmethod
    def decode_rows(self, data: Octets, width: int, out: Floats) -> int:
        """Decode rows. Return the number of an error (see `block_kernels`) that no encoder makes, or 0."""

    @property
    def prepared(self) -> bool:
        return kernels.cache_info().currsize > 0

    def prepare(self) -> None:
        kernels()

    def size(self, layout: ShardLayout) -> int:
        return sum(run.rows * self.row_bytes(run) for run in runs(layout))

    def row_bytes(self, run: BlockRun) -> int:
        """Return the bytes of one row."""
        if not run.coded:
            return 4 * run.width
        whole, rest = divmod(run.width, self.block)
        return whole * self.record(self.block) + (self.record(rest) if rest else 0)

    def decoder(self, layout: ShardLayout, out: Array) -> Decoder:
        return _BlockDecoder(self, layout, out)

    def encoder(self, layout: ShardLayout) -> Encoder:
        return ErrorFeedback(self, layout)


@cache
def kernels() -> Any:
    """Load the kernels. The first call takes a second or more if no earlier process has cached their code."""
    return import_module("pswire.transport.block_kernels")


class _Levels(BlockCodec):
    """Sends every element as an integer multiple, at most `most`, of its block's scale. `halves`: in four bits."""

    def __init__(
        self, name: str, number: "model_pb2.WireDtype.ValueType", block: int, most: int, *, halves: bool
    ) -> None:
        super().__init__(name, number, block)
        self._most, self._halves = np.float32(most), halves

    def record(self, elements: int) -> int:
        return SCALE + ((elements + 1) // 2 if self._halves else elements)

    def encode_rows(self, values: Floats, residual: Floats, width: int, out: Octets, left: Floats) -> int:
        form = (width, self.block, self._most, self._halves)
        found: int = kernels().encode_levels(values, residual, *form, out, left, left.view(np.uint32))
        return found

    def decode_rows(self, data: Octets, width: int, out: Floats) -> int:
        wrong: int = kernels().decode_levels(data, width, self.block, self._most, self._halves, out)
        return wrong


class _TopK(BlockCodec):
    """Sends the elements of largest magnitude (of ties the first): rising places (16 bits each), then int8 levels."""

    sparse = True

    def record(self, elements: int) -> int:
        return SCALE + 3 * max(1, elements // PART)

    def encode_rows(self, values: Floats, residual: Floats, width: int, out: Octets, left: Floats) -> int:
        form = (width, self.block, PART)
        found: int = kernels().encode_largest(values, residual, *form, out, left, left.view(np.uint32))
        return found

    def decode_rows(self, data: Octets, width: int, out: Floats) -> int:
        wrong: int = kernels().decode_largest(data, width, self.block, PART, out)
        return wrong


_WRONG: Final = (
    "",
    "finite numbers, got a scale that is not finite",
    "no negative scale",
    "levels no smaller than minus the largest",
    "levels of zero beside a scale of zero",
    "zero after the last level of a block",
    "places that rise and lie within the block",
)


class _BlockDecoder:
    """Decodes row by row; an incomplete row waits for the rest of its bytes."""

    def __init__(self, codec: BlockCodec, layout: ShardLayout, out: Array) -> None:
        self._codec, self._out = codec, out.reshape(-1)
        self._runs = iter(runs(layout))
        self._run: BlockRun | None = None
        self._row = 0
        self._rest = b""

    def feed(self, data: Bytes) -> tuple[int, int]:
        data = memoryview(self._rest + bytes(data)) if self._rest else memoryview(data)
        first = last = None
        while data.nbytes:
            run = self._current()
            if run is None:
                raise WireDtypeError(f"expected the end of the payload, got {data.nbytes} more bytes")
            unit = self._codec.row_bytes(run)
            rows = min(run.rows - self._row, data.nbytes // unit)
            if rows == 0:
                break
            start = run.start + self._row * run.width
            last = start + rows * run.width
            first = start if first is None else first
            self._decode(run, np.frombuffer(data[: rows * unit], np.uint8), start, last)
            self._row, data = self._row + rows, data[rows * unit :]
        self._rest = bytes(data)
        return (0, 0) if first is None or last is None else (first, last)

    def _current(self) -> BlockRun | None:
        if self._run is None or self._row == self._run.rows:
            self._run, self._row = next(self._runs, None), 0
        return self._run

    def _decode(self, run: BlockRun, data: Octets, start: int, stop: int) -> None:
        out = self._out[start:stop]
        if not run.coded:
            out[...] = data.view("<f4")
        elif wrong := self._codec.decode_rows(data, run.width, out):
            raise WireDtypeError(f"{self._codec.name}, elements {start} to {stop}: expected {_WRONG[wrong]}")


class ErrorFeedback(Encoder):
    """Adds what encoding takes from a payload to the worker's next one."""

    def __init__(self, codec: BlockCodec, layout: ShardLayout) -> None:
        self._blocks, self._runs, self._size = codec, tuple(runs(layout)), codec.size(layout)
        self.residual = np.zeros(layout.elements, np.float32)
        self.base = None
        # Base and residual before the commit of `base`; the newest payload's ticket and the residual it leaves.
        self._before: tuple[int | None, Floats] | None = None
        self._next: tuple[int, Floats] | None = None
        # An array for the next residual: the system would have to clear the pages of a new one. Zero where nothing is
        # coded, as every residual is.
        self._spare: Floats | None = None

    def encode(self, ticket: int, values: Array, part: GroupPart | None = None) -> Octets:
        payload = self._payload(part)
        for _ in self._pieces(ticket, values, payload, part):
            pass
        return payload

    def pieces(self, ticket: int, values: Array, part: GroupPart | None = None) -> Iterator[Array]:
        payload, begin = self._payload(part), 0
        for end in self._pieces(ticket, values, payload, part):
            yield payload[begin:end]
            begin = end

    def _payload(self, part: GroupPart | None) -> Octets:
        return np.empty(self._size if part is None else self._blocks.size(part.layout), np.uint8)

    def _pieces(self, ticket: int, values: Array, payload: Octets, part: GroupPart | None) -> Iterator[int]:
        """Encode row by row into `payload`. Yield how far that is whenever another chunk is full, and at the end."""
        left, sent, end = self._unused(), 0, 0
        coded, residual, own = self._runs, self.residual, left
        if part is not None and part.rows is not None:
            # Of all other rows the residual stays.
            left[...] = residual
            coded, values, residual = tuple(runs(part.layout)), part.take(values), part.take(residual)
            own = np.zeros_like(residual)
        for run in coded:
            size = self._blocks.row_bytes(run)
            together = max(1, frames.CHUNK_BYTES // size)
            for row in range(0, run.rows, together):
                rows = min(together, run.rows - row)
                begin, end = end, end + rows * size
                start = run.start + row * run.width
                here = slice(start, start + rows * run.width)
                self._encode_part(run, start, values[here], residual[here], payload[begin:end], own[here])
                if end - sent >= frames.CHUNK_BYTES:
                    yield end
                    sent = end
        if own is not left:
            assert part is not None
            part.put(left, own)
        self._next = (ticket, left)
        if end > sent:
            yield end

    def _encode_part(
        self, run: BlockRun, start: int, values: Array, residual: Floats, out: Octets, left: Floats
    ) -> None:
        """Encode elements of whole rows of `run`; they begin at `start` of the payload."""
        if not run.coded:
            out.view("<f4")[...] = values
            return
        bad = self._blocks.encode_rows(values, residual, run.width, out, left)
        if bad >= 0:
            found = values[bad] + residual[bad]
            raise NotFinite(f"expected finite numbers, got {found} at element {start + bad}")

    def keep(self, ticket: int) -> None:
        if self._next is not None and self._next[0] == ticket:
            if self._before is not None:
                self._spare = self._before[1]
            self._before = (self.base, self.residual)
            (self.base, self.residual), self._next = self._next, None

    def take_back(self, ticket: int) -> None:
        if self.base == ticket and self._before is not None:
            self._spare = self.residual
            (self.base, self.residual), self._before = self._before, None

    def _unused(self) -> Floats:
        """Return an array for what the next payload leaves; one that was made for another payload counts no more."""
        if self._next is not None:
            (_, self._spare), self._next = self._next, None
        left, self._spare = self._spare, None
        return np.zeros_like(self.residual) if left is None else left


class _Forgetful(_TopK):
    """Top-k without error feedback: what is not sent is lost. To see what error feedback is for."""

    remembers = False

    def encoder(self, layout: ShardLayout) -> Encoder:
        return _NoFeedback(self, layout)


class _NoFeedback(ErrorFeedback):
    """Encodes each payload as if it were the first."""

    def keep(self, ticket: int) -> None:
        pass


INT8: Final = _Levels("int8", model_pb2.WIRE_DTYPE_INT8, 1024, 127, halves=False)
INT4: Final = _Levels("int4", model_pb2.WIRE_DTYPE_INT4, 64, 7, halves=True)
TOP_K: Final = _TopK("top-k", model_pb2.WIRE_DTYPE_TOP_K, 4096)
FORGETFUL_TOP_K: Final = _Forgetful("top-k-forgetful", model_pb2.WIRE_DTYPE_TOP_K_FORGETFUL, 4096)
