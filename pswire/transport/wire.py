"""The codecs by name and number, and the choice of codecs for a job's gradients and weights."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from pswire.nearest import did_you_mean
from pswire.transport.blocks import INT4, INT8, TOP_K
from pswire.transport.codecs import BFLOAT16, FLOAT16, FLOAT32, Codec, Elementwise, WireDtypeError

# By the name in configuration files.
CODECS: Final[dict[str, Codec]] = {
    codec.name: codec for codec in (FLOAT32, BFLOAT16, FLOAT16, INT8, INT4, TOP_K)
}


@dataclass(frozen=True, slots=True)
class Wire:
    """The codecs of payloads: gradients travel by `up`, weights by `down`."""

    up: Codec
    down: Elementwise

    @property
    def name(self) -> str:
        """The name that `wire_named` reads."""
        plain = self.down is (self.up if isinstance(self.up, Elementwise) else FLOAT32)
        return self.up.name if plain else f"{self.up.name}/{self.down.name}"

    @property
    def exact(self) -> bool:
        """True if nothing is rounded."""
        return self.up.exact and self.down.exact

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

    Without a slash, weights travel as float32 if the codec is for gradients only. Raises WireDtypeError.
    """
    up, slash, down = name.partition("/")
    gradients = codec_named(up)
    weights = codec_named(down) if slash else gradients if isinstance(gradients, Elementwise) else FLOAT32
    if not isinstance(weights, Elementwise):
        known = ", ".join(codec.name for codec in CODECS.values() if isinstance(codec, Elementwise))
        raise WireDtypeError(f"wire dtype {name!r}: weights travel by one of {known}, not by {weights.name}")
    return Wire(gradients, weights)


def codec_named(name: str) -> Codec:
    """Return the codec of that name. Raises WireDtypeError for an unknown name."""
    if name not in CODECS:
        raise WireDtypeError(f"unknown wire dtype {name!r}{did_you_mean(name, CODECS)}")
    return CODECS[name]


def codec_numbered(number: int) -> Codec:
    """Return the codec of a message's number. Raises WireDtypeError if it is unspecified or unknown."""
    for codec in CODECS.values():
        if codec.number == number:
            return codec
    raise WireDtypeError(f"unknown wire dtype number {number}; known: {', '.join(CODECS)}")
