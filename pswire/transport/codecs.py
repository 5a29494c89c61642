"""Codecs of flat float32 payloads: their interface, and those that encode each element by itself.

Gradients may travel by any codec, weights by an `Elementwise` one: float32 unchanged, bfloat16 and float16 rounded to
nearest even. `pswire.transport.blocks` has codecs that share a scale among a block of elements; `pswire.transport.wire`
has the table of all. The size of a payload depends on the server's `ShardLayout` alone, never on the numbers.

State that a worker keeps from payload to payload, such as the residual of error feedback, is in an `Encoder`, one for
each worker and server. It counts from the commit on.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import Any, ClassVar, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from pswire.model.groups import GroupPart
from pswire.model.plan import ShardLayout
from pswire.transport import frames
from pswire.v1 import model_pb2

Bytes = bytes | bytearray | memoryview
Array = NDArray[Any]


class WireDtypeError(ValueError):
    """An unknown codec, or bytes that it does not encode."""


class Decoder(Protocol):
    """Decodes one payload into one array. Used by one thread."""

    def feed(self, data: Bytes) -> tuple[int, int]:
        """Decode the payload's next bytes. Return the elements [start, stop) of the array that are final now.

        Raises WireDtypeError for bytes that do not belong to such a payload.
        """
        ...


class NotFinite(ValueError):
    """A gradient has NaN or infinity, which scales would hide from the server. The text says where."""


class Encoder:
    """The encoder of one worker's payloads to one server, by a codec without state.

    Used by the thread that sends to the server.
    """

    # The ticket whose commit produced the residual that the next payload starts from; None: no residual.
    base: int | None = None

    def __init__(self, codec: "Elementwise") -> None:
        self._codec = codec

    def encode(self, ticket: int, values: Array, part: GroupPart | None = None) -> Array:
        """Return an array whose memory is the payload. Encoding a ticket's payload again gives the same bytes.

        `values`: C-contiguous, float32 or the codec's `array_dtype`. `part`: the payload is this part of them. Raises
        NotFinite.
        """
        return self._codec.encode(values if part is None else part.take(values))

    def pieces(self, ticket: int, values: Array, part: GroupPart | None = None) -> Iterator[Array]:
        """Encode as `encode` does, in pieces that are each encoded when they are asked for: one travels while the next
        is made.

        Take all of them. Raises NotFinite between two pieces.
        """
        return self._codec.pieces(values if part is None else part.take(values), frames.CHUNK_BYTES)

    def keep(self, ticket: int) -> None:
        """Adopt the residual of encoding `ticket`, which is committed.

        Does nothing unless `ticket` was encoded last: otherwise its payload travelled uncoded.
        """

    def take_back(self, ticket: int) -> None:
        """Undo the commit of `ticket`, which was dropped, if it is `base`."""


class Codec(ABC):
    """A way to encode payloads.

    `number`: a WireDtype in messages. `caution`: why a finite number may arrive infinite, if it may. `exact`: decoding
    restores the bits. `scaled`: elements share scales, so only gradients and changes travel by it. `remembers`: a
    worker's payload depends on those that it committed before, so replay encodes all of them. `sparse`: most elements
    of a payload arrive as zeros, and are sent later.
    """

    name: str
    number: "model_pb2.WireDtype.ValueType"
    caution: str = ""
    exact: bool = False
    scaled: ClassVar[bool] = False
    remembers: ClassVar[bool] = False
    sparse: bool = False

    @property
    def array_dtype(self) -> np.dtype[Any]:
        """The dtype of arrays that hold elements as they travel; float32 if none does."""
        return np.dtype(np.float32)

    @property
    def prepared(self) -> bool:
        """Whether `prepare` has nothing to do."""
        return True

    def prepare(self) -> None:  # noqa: B027
        """Do work in advance that would delay the first payload. Most codecs have none."""

    @abstractmethod
    def size(self, layout: ShardLayout) -> int:
        """Return the bytes of a payload."""

    @abstractmethod
    def decoder(self, layout: ShardLayout, out: Array) -> Decoder:
        """Return a decoder of one payload into `out`: float32, or `array_dtype` to keep elements as they travel."""

    @abstractmethod
    def encoder(self, layout: ShardLayout) -> Encoder:
        """Return an encoder for one worker and one server."""


class Elementwise(Codec):
    """Encodes each element by itself, in the `itemsize` bytes of `raw`, a little-endian numpy dtype."""

    def __init__(
        self, name: str, number: "model_pb2.WireDtype.ValueType", raw: str, caution: str = ""
    ) -> None:
        self.name, self.number, self.caution = name, number, caution
        self.raw = np.dtype(raw)
        self.itemsize = self.raw.itemsize
        self.exact = self.raw == np.dtype("<f4")

    @cached_property
    def array_dtype(self) -> np.dtype[Any]:
        return self.raw.newbyteorder("=")

    def size(self, layout: ShardLayout) -> int:
        return layout.elements * self.itemsize

    def encoder(self, layout: ShardLayout) -> Encoder:
        return Encoder(self)

    def encode(self, values: Array) -> Array:
        """Return an array whose memory is the payload of `values` (C-contiguous; float32 or `array_dtype`).

        Does not copy values that are the payload already.
        """
        if values.dtype == self.raw:
            return values
        with np.errstate(over="ignore"):
            return values.astype(self.raw, copy=False)

    def pieces(self, values: Array, limit: int) -> Iterator[Array]:
        """Encode in pieces of at most `limit` bytes, each made on demand."""
        step = limit // self.itemsize
        return (self.encode(values[start : start + step]) for start in range(0, values.size, step))

    def elements(self, data: Bytes) -> Array:
        """Return the elements of a chunk, as `raw`, without a copy. Raises WireDtypeError if one is cut."""
        length = memoryview(data).nbytes
        if length % self.itemsize:
            raise WireDtypeError(f"expected whole {self.name} elements, got {length} bytes")
        return np.frombuffer(data, self.raw)

    def widen(self, elements: Array, out: Array) -> None:
        """Convert `elements`, which are `raw`, to float32 in `out`."""
        out[...] = elements

    def decoder(self, layout: ShardLayout, out: Array) -> Decoder:
        return ElementDecoder(self, out)


class ElementDecoder:
    """Decodes into `out`, which may have any number of elements."""

    def __init__(self, codec: Elementwise, out: Array) -> None:
        self._codec = codec
        self._out = out.reshape(-1)
        self._narrow = out.dtype != np.float32
        self._done = 0

    def feed(self, data: Bytes) -> tuple[int, int]:
        elements = self._codec.elements(data)
        start, stop = self._done, self._done + elements.size
        if stop > self._out.size:
            expected = self._codec.itemsize * (self._out.size - start)
            raise WireDtypeError(f"expected at most {expected} more bytes, got {memoryview(data).nbytes}")
        out = self._out[start:stop]
        if self._narrow:
            # Copy as bits: numpy converts no bfloat16 from a buffer.
            size = elements.itemsize
            out.view(f"u{size}")[...] = elements.view(f"<u{size}")
        else:
            self._codec.widen(elements, out)
        self._done = stop
        return start, stop


class _BFloat16(Elementwise):
    """bfloat16. Raw elements are bits (uint16), because numpy does not support bfloat16 as a buffer's format."""

    @cached_property
    def array_dtype(self) -> np.dtype[Any]:
        # Imported on use: most runs never need it, and every process would pay for the import.
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return dtype

    def encode(self, values: Array) -> Array:
        return values.astype(self.array_dtype, copy=False).view(np.uint16).astype(self.raw, copy=False)

    def widen(self, elements: Array, out: Array) -> None:
        out[...] = elements.astype(np.uint16, copy=False).view(self.array_dtype)


# Bytes as they are, such as payloads that are decoded later.
OCTETS: Final = Elementwise("octets", model_pb2.WIRE_DTYPE_UNSPECIFIED, "u1")
FLOAT32: Final = Elementwise("float32", model_pb2.WIRE_DTYPE_FLOAT32, "<f4")
BFLOAT16: Final = _BFloat16("bfloat16", model_pb2.WIRE_DTYPE_BFLOAT16, "<u2")
FLOAT16: Final = Elementwise(
    "float16", model_pb2.WIRE_DTYPE_FLOAT16, "<f2", caution="float16 turns numbers beyond 65504 into infinity"
)
