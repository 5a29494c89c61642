"""Weights as changes: how a version travels to a reader that has an earlier one.

The server has the optimizer's weights x and publishes y, which everybody reads: workers, log, replay, checkpoints. A
version is what its encoded change makes of the one before,

    d = encode(x' - y);    y' = y + decode(d),

so what encoding leaves out, x' - y', is part of the next change and nothing drifts (error feedback on the server: H.
Tang et al., "DoubleSqueeze", ICML 2019, algorithm 1). Both ends compute y' with one float32 addition per element, so a
reader that adds the same changes in order has y' to the bit. Rows and state that a block codec leaves as float32 travel
whole.
"""

import numpy as np
from numpy.typing import NDArray

from pswire.model.plan import ShardLayout
from pswire.transport.blocks import BlockCodec, kernels, runs
from pswire.transport.codecs import Bytes, NotFinite

Floats = NDArray[np.float32]
Octets = NDArray[np.uint8]


def encode_change(codec: BlockCodec, layout: ShardLayout, weights: Floats, before: Floats) -> Octets:
    """Encode what leads from the version `before` to `weights`. Raises NotFinite if a change overflows."""
    payload, end = np.empty(codec.size(layout), np.uint8), 0
    for run in runs(layout):
        part = slice(run.start, run.start + run.rows * run.width)
        begin, end = end, end + run.rows * codec.row_bytes(run)
        if not run.coded:
            payload[begin:end].view("<f4")[...] = weights[part]
            continue
        left = np.empty(part.stop - part.start, np.float32)
        bad = codec.encode_rows(weights[part], -before[part], run.width, payload[begin:end], left)
        if bad >= 0:
            raise NotFinite(f"the change of element {run.start + bad} is not finite")
    return payload


def add_change(codec: BlockCodec, layout: ShardLayout, change: Bytes, before: Floats, out: Floats) -> None:
    """Write the version that an encoded change makes of `before` to `out`, which may be the same array.

    Raises WireDtypeError for bytes that no encoder makes; then `out` is unchanged.
    """
    decoded = np.empty(layout.elements, np.float32)
    codec.decoder(layout, decoded).feed(change)
    for run in runs(layout):
        part = slice(run.start, run.start + run.rows * run.width)
        if run.coded:
            np.add(before[part], decoded[part], out=out[part])
        else:
            out[part] = decoded[part]


def checksum(values: Floats) -> int:
    """Return the sum of (2 i + 1) times the bits of element i, modulo 2**64: it tells versions apart, not attackers."""
    return int(kernels().weighted_sum(values.view(np.uint32)))


def longest_chain(codec: BlockCodec, layout: ShardLayout) -> int:
    """Return the most changes in a row that take fewer bytes than the version itself; 16 at most."""
    return min(16, max(0, layout.nbytes - 1) // max(1, codec.size(layout)))


def add_chain(codec: BlockCodec, layout: ShardLayout, chain: Octets, count: int, values: Floats) -> None:
    """Add `count` changes, one behind the other in `chain`, to `values`. Raises WireDtypeError."""
    size = codec.size(layout)
    for start in range(0, count * size, size):
        add_change(codec, layout, chain[start : start + size].data, values, values)
