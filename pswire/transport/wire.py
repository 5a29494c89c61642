"""The codecs by name and number, and the choice of codecs for a job's gradients and weights."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from pswire.nearest import did_you_mean
from pswire.transport.blocks import FORGETFUL_TOP_K, INT4, INT8, TOP_K, BlockCodec
from pswire.transport.codecs import BFLOAT16, FLOAT16, FLOAT32, Codec, Elementwise, WireDtypeError
from pswire.v1 import model_pb2

# By the name in configuration files.
CODECS: Final[dict[str, Codec]] = {
    codec.name: codec for codec in (FLOAT32, BFLOAT16, FLOAT16, INT8, INT4, TOP_K, FORGETFUL_TOP_K)
}


@dataclass(frozen=True, slots=True)
class Wire:
    """The codecs of payloads: gradients travel by `up`, weights by `down`.

    `deltas`: the codec of changes from version to version, for readers that have an earlier version
    (`pswire.transport.deltas`). Then `down` is float32.
    """

    up: Codec
    down: Elementwise
    deltas: BlockCodec | None = None

    @property
    def name(self) -> str:
        """The name that `wire_named` reads."""
        if self.deltas is not None:
            return f"{self.up.name}/{self.deltas.name}"
        plain = self.down is (self.up if isinstance(self.up, Elementwise) else FLOAT32)
        return self.up.name if plain else f"{self.up.name}/{self.down.name}"

    @property
    def exact(self) -> bool:
        """True if nothing is rounded."""
        return self.up.exact and self.down.exact and self.deltas is None

    @property
    def same(self) -> bool:
        """True if both use one codec, so that a device may compute with what it receives and send what it computes."""
        return self.up is self.down

    @property
    def array_dtype(self) -> np.dtype[Any]:
        """The dtype of a worker's arrays, into and out of its computation."""
        return self.down.array_dtype if self.same else np.dtype(np.float32)


def wire_named(name: str) -> Wire:
    """Read `wire_dtype`: one codec for both ways, or one for gradients and, after a slash, one for weights.

    A codec with scales after the slash encodes the weights' changes. Without a slash, weights travel as float32 beside
    such a codec. Raises WireDtypeError.
    """
    up, slash, down = name.partition("/")
    gradients = codec_named(up)
    weights = codec_named(down) if slash else gradients if isinstance(gradients, Elementwise) else FLOAT32
    if isinstance(weights, BlockCodec):
        return Wire(gradients, FLOAT32, weights)
    assert isinstance(weights, Elementwise)
    return Wire(gradients, weights)


def codec_named(name: str) -> Codec:
    """Return the codec of that name. Raises WireDtypeError for an unknown name."""
    if name not in CODECS:
        raise WireDtypeError(f"unknown wire dtype {name!r}{did_you_mean(name, CODECS)}")
    return CODECS[name]


def deltas_named(name: str) -> BlockCodec | None:
    """Return the codec of changes of that name; None for an empty one. Raises WireDtypeError for any other."""
    return _deltas(codec_named(name)) if name else None


def deltas_numbered(number: int) -> BlockCodec | None:
    """Return the codec of changes of a message's number; None for 0. Raises WireDtypeError for any other."""
    return _deltas(codec_numbered(number)) if number else None


def number_of(deltas: BlockCodec | None) -> "model_pb2.WireDtype.ValueType":
    """Return what `deltas_numbered` reads."""
    return model_pb2.WIRE_DTYPE_UNSPECIFIED if deltas is None else deltas.number


def _deltas(codec: Codec) -> BlockCodec:
    if not isinstance(codec, BlockCodec):
        raise WireDtypeError(f"expected int8, int4 or top-k for the weights' changes, got {codec.name}")
    return codec


def codec_numbered(number: int) -> Codec:
    """Return the codec of a message's number. Raises WireDtypeError if it is unspecified or unknown."""
    for codec in CODECS.values():
        if codec.number == number:
            return codec
    raise WireDtypeError(f"unknown wire dtype number {number}; known: {', '.join(CODECS)}")
