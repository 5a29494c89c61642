"""How a flat float32 payload travels: the codecs behind `wire_dtype`, in one table.

A codec says how many bytes n elements take, encodes them, and decodes them
from chunks as they arrive. float32 travels as it is, bfloat16 and float16 are
rounded to nearest even. These are `Elementwise`: each element travels by
itself in a fixed number of bytes. Others need not be: a payload may begin with
a scale, say.

What a worker remembers from payload to payload (the residual of error
feedback, say) is in an `Encoder`, one per worker and server. Like
`psworker.local.LocalWork` it counts from the commit on.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from pswire.nearest import did_you_mean
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


class Encoder:
    """A codec as one worker uses it towards one server; this one remembers nothing.

    A codec that does returns its own from `Codec.encoder`. The thread that
    sends to the server uses it.
    """

    def __init__(self, codec: "Codec") -> None:
        self._codec = codec

    def encode(self, ticket: int, values: Array) -> Array:
        """As `Codec.encode`, under `ticket`. Encoded again, a ticket's payload has the same bytes."""
        return self._codec.encode(values)

    def keep(self, ticket: int) -> None:
        """The payload of `ticket` is committed: what encoding it left behind counts from now on.

        A no-op for a ticket that was not encoded last: its payload went
        another way, uncoded.
        """

    def state(self) -> Mapping[str, Array]:
        """What is remembered, by name."""
        return {}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Go on from a `state`. Raises ValueError for one that is not of this codec."""
        if state:
            raise ValueError(f"{self._codec.name} remembers nothing, got {', '.join(sorted(state))}")


class Codec(ABC):
    """`number`: in messages, a WireDtype. `caution`: why a finite number may arrive infinite, if it may.

    `exact`: what is decoded has the bits of what was encoded. `remembers`: what a worker's payload becomes depends
    on those that it committed before, so that replay encodes all of them.
    """

    name: str
    number: "model_pb2.WireDtype.ValueType"
    caution: str = ""
    exact: bool = False
    remembers: bool = False

    @property
    def array_dtype(self) -> np.dtype[Any]:
        """Of arrays that hold elements as they travel; float32 where no array does."""
        return np.dtype(np.float32)

    @abstractmethod
    def size(self, elements: int) -> int:
        """Bytes of a payload of `elements` elements."""

    @abstractmethod
    def encode(self, values: Array) -> Array:
        """An array whose memory is the payload of `values` (C-contiguous; float32 or `array_dtype`).

        Nothing is copied that is the payload already.
        """

    @abstractmethod
    def decoder(self, out: Array) -> Decoder:
        """For one payload, into `out`: float32, or `array_dtype` to keep elements as they travel."""

    def pieces(self, values: Array, limit: int) -> Iterator[Array]:
        """As `encode`, in pieces of at most `limit` bytes, each made when it is asked for."""
        payload = self.encode(values).reshape(-1).view(np.uint8)
        return (payload[start : start + limit] for start in range(0, payload.size, limit))

    def encoder(self, elements: int) -> Encoder:
        """For one worker and one server whose payloads have `elements` elements."""
        return Encoder(self)


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

    def size(self, elements: int) -> int:
        return elements * self.raw.itemsize

    def encode(self, values: Array) -> Array:
        if values.dtype == self.raw:
            return values
        with np.errstate(over="ignore"):
            return values.astype(self.raw, copy=False)

    def pieces(self, values: Array, limit: int) -> Iterator[Array]:
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

    def decoder(self, out: Array) -> Decoder:
        return _ElementDecoder(self, out)


class _ElementDecoder:
    def __init__(self, codec: Elementwise, out: Array) -> None:
        self._codec = codec
        self._out = out.reshape(-1)
        self._narrow = out.dtype != np.float32
        self._done = 0

    def feed(self, data: Bytes) -> tuple[int, int]:
        elements = self._codec.elements(data)
        start, stop = self._done, self._done + elements.size
        if stop > self._out.size:
            expected = self._codec.size(self._out.size - start)
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

# By the name in configuration files. A codec that is added here can be asked for by every process that has it.
CODECS: Final[dict[str, Codec]] = {codec.name: codec for codec in (FLOAT32, BFLOAT16, FLOAT16)}


def codec_named(name: str) -> Codec:
    """Raises WireDtypeError for an unknown name."""
    if name not in CODECS:
        raise WireDtypeError(f"unknown wire dtype {name!r}{did_you_mean(name, CODECS)}")
    return CODECS[name]


def codec_numbered(number: int) -> Codec:
    """By a message's number. Raises WireDtypeError when it is unspecified or unknown."""
    for codec in CODECS.values():
        if codec.number == number:
            return codec
    raise WireDtypeError(f"unknown wire dtype number {number}; known: {', '.join(CODECS)}")
