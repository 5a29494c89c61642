"""How a flat float32 payload travels: what a codec is, and those that take each element by itself.

Gradients may travel by any codec, weights by an `Elementwise` one: float32 as it is, bfloat16 and float16 rounded to
nearest even. `pswire.transport.blocks` has codecs that share a scale among a block of elements; `pswire.transport.wire`
has the table of all. The size of a payload depends on the server's `ShardLayout` only, never on the numbers.

What a worker remembers from payload to payload, such as the residual of error feedback, is in an `Encoder`, one for
each worker and server. It counts from the commit on.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from pswire.model.plan import ShardLayout
from pswire.v1 import model_pb2

Bytes = bytes | bytearray | memoryview
Array = NDArray[Any]


class WireDtypeError(ValueError):
    """A codec that is not known, or bytes that are not what it encodes."""


class Decoder(Protocol):
    """Decodes one payload into the array that it was made for. One thread uses it."""

    def feed(self, data: Bytes) -> tuple[int, int]:
        """The payload's next bytes. The elements [start, stop) of the array are final now.

        Raises WireDtypeError for bytes that do not belong to such a payload.
        """
        ...


class NotFinite(ValueError):
    """A gradient with NaN or infinity, which a codec with scales would hide from the server. The text says where."""


class Encoder:
    """One worker's payloads to one server, by a codec that remembers nothing.

    The thread that sends to the server uses it.
    """

    # The ticket whose commit left behind what the next payload begins with; None: nothing did.
    base: int | None = None

    def __init__(self, codec: "Elementwise") -> None:
        self._codec = codec

    def encode(self, ticket: int, values: Array) -> Array:
        """Return an array whose memory is the payload. Encoded again, a ticket's payload has the same bytes.

        `values`: C-contiguous, float32 or the codec's `array_dtype`. Raises NotFinite.
        """
        return self._codec.encode(values)

    def keep(self, ticket: int) -> None:
        """Let what encoding `ticket` left behind count: it is committed.

        Do nothing for a ticket that was not encoded last: its payload went another way, uncoded.
        """

    def take_back(self, ticket: int) -> None:
        """Forget what the commit of `ticket` left behind, because it was dropped; if it is `base`."""


class Codec(ABC):
    """`number`: in messages, a WireDtype. `caution`: why a finite number may arrive infinite, if it may.

    `exact`: what is decoded has the bits of what was encoded. `remembers`: what a worker's payload becomes depends
    on those that it committed before, so that replay encodes all of them. `sparse`: most elements of a payload arrive
    as zeros, and come in a later one.
    """

    name: str
    number: "model_pb2.WireDtype.ValueType"
    caution: str = ""
    exact: bool = False
    remembers: ClassVar[bool] = False
    sparse: bool = False

    @property
    def array_dtype(self) -> np.dtype[Any]:
        """Of arrays that hold elements as they travel; float32 where no array does."""
        return np.dtype(np.float32)

    def prepare(self) -> None:  # noqa: B027
        """Do ahead what would make the first payload late. Most have nothing to do."""

    @abstractmethod
    def size(self, layout: ShardLayout) -> int:
        """Bytes of a payload."""

    @abstractmethod
    def decoder(self, layout: ShardLayout, out: Array) -> Decoder:
        """For one payload, into `out`: float32, or `array_dtype` to keep elements as they travel."""

    @abstractmethod
    def encoder(self, layout: ShardLayout) -> Encoder:
        """For one worker and one server."""


class Elementwise(Codec):
    """Every element by itself in the bytes of `raw`, a little-endian numpy dtype."""

    def __init__(
        self, name: str, number: "model_pb2.WireDtype.ValueType", raw: str, caution: str = ""
    ) -> None:
        self.name, self.number, self.caution = name, number, caution
        self.raw = np.dtype(raw)
        self.exact = self.raw == np.dtype("<f4")

    @property
    def array_dtype(self) -> np.dtype[Any]:
        return self.raw.newbyteorder("=")

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.raw.itemsize

    def size(self, layout: ShardLayout) -> int:
        return layout.elements * self.itemsize

    def encoder(self, layout: ShardLayout) -> Encoder:
        return Encoder(self)

    def encode(self, values: Array) -> Array:
        """Return an array whose memory is the payload of `values` (C-contiguous; float32 or `array_dtype`).

        Nothing is copied that is the payload already.
        """
        if values.dtype == self.raw:
            return values
        with np.errstate(over="ignore"):
            return values.astype(self.raw, copy=False)

    def pieces(self, values: Array, limit: int) -> Iterator[Array]:
        """As `encode`, in pieces of at most `limit` bytes, each made when it is asked for."""
        step = limit // self.raw.itemsize
        return (self.encode(values[start : start + step]) for start in range(0, values.size, step))

    def elements(self, data: Bytes) -> Array:
        """The elements in a chunk, as `raw`, uncopied. Raises WireDtypeError when one is cut."""
        length = memoryview(data).nbytes
        if length % self.raw.itemsize:
            raise WireDtypeError(f"expected whole {self.name} elements, got {length} bytes")
        return np.frombuffer(data, self.raw)

    def widen(self, elements: Array, out: Array) -> None:
        """From `elements`, which are `raw`, to float32."""
        out[...] = elements

    def decoder(self, layout: ShardLayout, out: Array) -> Decoder:
        return ElementDecoder(self, out)


class ElementDecoder:
    """Decodes into `out` whatever number of elements that has."""

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
            raise WireDtypeError(f"expected at most {expected} bytes more, got {memoryview(data).nbytes}")
        out = self._out[start:stop]
        if self._narrow:
            # Bit by bit: numpy converts no bfloat16 from a buffer.
            size = elements.itemsize
            out.view(f"u{size}")[...] = elements.view(f"<u{size}")
        else:
            self._codec.widen(elements, out)
        self._done = stop
        return start, stop


class _BFloat16(Elementwise):
    """Its raw elements are bits (uint16), because numpy does not know bfloat16 as the format of a buffer."""

    @property
    def array_dtype(self) -> np.dtype[Any]:
        # Imported on use: most runs never need it, and every process pays for imports.
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return dtype

    def encode(self, values: Array) -> Array:
        return values.astype(self.array_dtype, copy=False).view(np.uint16).astype(self.raw, copy=False)

    def widen(self, elements: Array, out: Array) -> None:
        out[...] = elements.astype(np.uint16, copy=False).view(self.array_dtype)


FLOAT32: Final = Elementwise("float32", model_pb2.WIRE_DTYPE_FLOAT32, "<f4")
BFLOAT16: Final = _BFloat16("bfloat16", model_pb2.WIRE_DTYPE_BFLOAT16, "<u2")
FLOAT16: Final = Elementwise(
    "float16", model_pb2.WIRE_DTYPE_FLOAT16, "<f2", caution="beyond 65504 they become infinite as float16"
)
