"""Weights as changes: how a version travels to a reader that has an earlier one.

The server has the optimizer's weights x and publishes y, which everybody reads: workers, log, replay, checkpoints. A
version is what its encoded change makes of the one before,

    d = encode(x' - y);    y' = y + decode(d),

so what encoding leaves out, x' - y', is part of the next change and nothing drifts (error feedback on the server: H.
Tang et al., "DoubleSqueeze", ICML 2019, algorithm 1). Both ends compute y' with one float32 addition per element, so a
reader that adds the same changes in order has y' to the bit. Rows and state that a block codec leaves as float32 travel
whole.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pswire.model.plan import ShardLayout
from pswire.transport.blocks import BlockCodec, BlockRun, kernels, runs
from pswire.transport.codecs import WireDtypeError

Floats = NDArray[np.float32]
Octets = NDArray[np.uint8]

# Elements that all passes over a payload visit together, so that they stay in a processor's cache; at least one row.
TOGETHER = 1 << 15


def encode_change(
    codec: BlockCodec, layout: ShardLayout, weights: Floats, before: Floats, out: Floats
) -> tuple[Octets, int, NDArray[np.bool_] | None]:
    """Encode what leads from the version `before` to the finite `weights`, and write the version that this makes to
    `out`.

    Return the change, the new version's checksum, and which elements keep their old values, because their change or new
    number would not be finite; None if none does.
    """
    payload, total = np.empty(codec.size(layout), np.uint8), 0
    kept: NDArray[np.bool_] | None = None
    for run, part, data in _groups(codec, layout):
        wanted, old, new, change = weights[part], before[part], out[part], payload[data]
        if run.coded:
            left = np.empty(new.size, np.float32)
            if not _encoded(codec, run, wanted, old, change, new, left):
                kept = np.zeros(out.size, np.bool_) if kept is None else kept
                kept[part] = _guarded(codec, run, wanted, old, change, new, left)
        else:
            change.view("<f4")[...] = wanted
            new[...] = wanted
        total += _weighted(new, part.start)
    return payload, total % 2**64, kept


def _encoded(
    codec: BlockCodec, run: BlockRun, wanted: Floats, old: Floats, change: Octets, new: Floats, left: Floats
) -> bool:
    """Encode a change of rows, and write what it makes of `old` to `new`. Return whether all of it is finite."""
    if codec.encode_rows(wanted, -old, run.width, change, left) >= 0:
        return False
    codec.decode_rows(change, run.width, left)
    with np.errstate(over="ignore"):
        np.add(old, left, out=new)
    return bool(np.isfinite(new).all())


def _guarded(
    codec: BlockCodec, run: BlockRun, wanted: Floats, old: Floats, change: Octets, new: Floats, left: Floats
) -> NDArray[np.bool_]:
    """Encode as `_encoded` does, with a change of zero for elements that would not be finite; return these."""
    with np.errstate(over="ignore"):
        kept: NDArray[np.bool_] = ~np.isfinite(wanted - old)
    while not _encoded(codec, run, np.where(kept, old, wanted), old, change, new, left):
        # Without them the blocks have other scales.
        kept |= ~np.isfinite(new)
    return kept


def add_change(codec: BlockCodec, layout: ShardLayout, change: Octets, values: Floats) -> int:
    """Turn the version in `values` into the one that an encoded change makes of it, and return its checksum.

    Raises WireDtypeError for bytes that no encoder makes; then `values` is neither version.
    """
    if change.size != codec.size(layout):
        raise WireDtypeError(f"expected a change of {codec.size(layout)} bytes, got {change.size}")
    total = 0
    for run, part, data in _groups(codec, layout):
        new = values[part]
        if run.coded:
            decoded = np.empty(new.size, np.float32)
            if codec.decode_rows(change[data], run.width, decoded):
                raise WireDtypeError(f"{codec.name}: elements {part.start} to {part.stop} are not as encoded")
            np.add(new, decoded, out=new)
        else:
            new[...] = change[data].view("<f4")
        total += _weighted(new, part.start)
    return total % 2**64


def checksum(values: Floats) -> int:
    """Return the sum of (2 i + 1) times the bits of element i, modulo 2**64: it tells versions apart, not attackers."""
    return _weighted(values, 0)


def longest_chain(codec: BlockCodec, layout: ShardLayout) -> int:
    """Return the most changes in a row that take fewer bytes than the version itself; 16 at most."""
    return min(16, max(0, layout.nbytes - 1) // max(1, codec.size(layout)))


def _groups(codec: BlockCodec, layout: ShardLayout) -> Iterator[tuple[BlockRun, slice, slice]]:
    """Yield rows that are visited together: their run, their elements, and their bytes in a payload."""
    at = 0
    for run in runs(layout):
        each, size = max(1, TOGETHER // run.width), codec.row_bytes(run)
        for row in range(0, run.rows, each):
            rows = min(each, run.rows - row)
            start = run.start + row * run.width
            yield run, slice(start, start + rows * run.width), slice(at, at + rows * size)
            at += rows * size


def _weighted(values: Floats, start: int) -> int:
    return int(kernels().weighted_sum(values.view(np.uint32), start))
