"""The arithmetic of contributions, in single passes over memory.

The order of operations is part of the contract: replaying a log must give the
same bits, so every function here names its formula exactly. Each pass is a
loop to be compiled and a numpy fallback; both give the same bits (see
psserver.optimizers.backend). The fallbacks go block by block, so that a block
stays in cache from one ufunc to the next.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psserver.optimizers import NUMPY, Backend, Loop
from psserver.shard import loops

Floats = NDArray[np.float32]

BLOCK = 1 << 15
LARGEST = np.float32(np.finfo(np.float32).max)

# What a server compiles besides its optimizer.
LOOPS: tuple[Loop, ...] = (
    loops.fold,
    loops.compensate,
    loops.finite,
    loops.squares,
    loops.copy_squares,
    loops.widen_squares,
    loops.narrow,
)


def fold(total: Floats, kept: float, values: Floats, factor: float, backend: Backend = NUMPY) -> None:
    """``total = total * kept + values * factor``, the scalars in float32. `values` may be overwritten."""
    backend.run(loops.fold, _fold, (total, values), (np.float32(kept), np.float32(factor)))


def _fold(total: Floats, values: Floats, kept: np.float32, factor: np.float32) -> None:
    with np.errstate(all="ignore"):
        for part in _blocks(total.size):
            scale(total[part], kept)
            scale(values[part], factor)
            np.add(total[part], values[part], out=total[part])


def scale(values: Floats, factor: float | np.float32) -> None:
    """``values *= float32(factor)``; nothing is done for a factor of 1."""
    if factor != 1.0:
        np.multiply(values, np.float32(factor), out=values)


def compensate(
    gradient: Floats, now: Floats, base: Floats, strength: float, backend: Backend = NUMPY
) -> None:
    """``g += (x_now - x_base) * g * g * lambda``, in place, multiplied from left to right.

    DC-ASGD: first-order Taylor correction with lambda g*g as the diagonal of
    the Hessian (Zheng et al. 2017, eq. 10).
    """
    backend.run(loops.compensate, _compensate, (gradient, now, base), (np.float32(strength),))


def _compensate(gradient: Floats, now: Floats, base: Floats, strength: np.float32) -> None:
    scratch = np.empty(min(BLOCK, gradient.size), np.float32)
    with np.errstate(all="ignore"):
        for part in _blocks(gradient.size):
            g = gradient[part]
            correction = scratch[: g.size]
            np.subtract(now[part], base[part], out=correction)
            np.multiply(correction, g, out=correction)
            np.multiply(correction, g, out=correction)
            np.multiply(correction, strength, out=correction)
            np.add(g, correction, out=g)


def largest(values: Floats) -> float:
    """The largest magnitude; NaN or infinite if one is. 0 of nothing."""
    found = [np.max(np.abs(values[part])) for part in _blocks(values.size)]
    return float(np.max(found)) if found else 0.0


def add_mean(state: Floats, deltas: Floats, total: float, out: Floats) -> None:
    """out = state + deltas / float32(total): the weighted mean of deltas; total 0 leaves the state."""
    if total == 0.0:
        out[...] = state
        return
    np.divide(deltas, np.float32(total), out=out)
    np.add(out, state, out=out)


def within(values: Floats, limit: np.float32, backend: Backend = NUMPY) -> bool:
    """No magnitude is beyond `limit`, which is finite; NaN is."""
    return backend.run(loops.finite, _within, (values,), (limit,))


def _within(values: Floats, limit: np.float32) -> bool:
    return all(bool((np.abs(values[part]) <= limit).all()) for part in _blocks(values.size))


def squares(values: Floats, limit: np.float32, backend: Backend = NUMPY) -> float | None:
    """The sum of all squares, in float64, its last bits in no fixed order; None if a magnitude is beyond `limit`, which
    is finite, or is NaN."""
    return backend.total(loops.squares, _squares, (values,), (limit,)) if values.size else 0.0


def _squares(values: Floats, limit: np.float32) -> float:
    return _sum_within((values[part] for part in _blocks(values.size)), limit)


def copy_squares(
    target: Floats, source: NDArray[Any], limit: np.float32, backend: Backend = NUMPY
) -> float | None:
    """Copy, and `squares` of what was copied; `source` need not be aligned.

    One pass instead of a copy, a check and a norm: for payloads that come in. `source` holds float32, or the bits of
    bfloat16, which are the upper halves of float32 numbers, as uint16; then `limit` is one of these, too.
    """
    if not target.size:
        return 0.0
    if source.dtype == np.float32:
        return backend.total(loops.copy_squares, _copy_squares, (target, source), (limit,))
    bits = np.float32(limit.view(np.uint32) >> np.uint32(16))
    return backend.total(loops.widen_squares, _widen_squares, (target.view(np.uint32), source), (bits,))


def _copy_squares(target: Floats, source: Floats, limit: np.float32) -> float:
    def copied() -> Iterator[Floats]:
        for part in _blocks(target.size):
            target[part] = source[part]
            yield target[part]

    return _sum_within(copied(), limit)


def _widen_squares(target: NDArray[np.uint32], source: NDArray[np.uint16], bits: np.float32) -> float:
    limit = np.uint32(int(bits) << 16).view(np.float32)

    def widened() -> Iterator[Floats]:
        for part in _blocks(target.size):
            np.left_shift(source[part], np.uint32(16), out=target[part], dtype=np.uint32)
            yield target[part].view(np.float32)

    return _sum_within(widened(), limit)


def _sum_within(blocks: Iterator[Floats], limit: np.float32) -> float:
    """-1 if a magnitude is beyond the limit, after all blocks."""
    good, total = True, 0.0
    for block in blocks:
        good = bool((np.abs(block) <= limit).all()) and good
        if good:
            wide = block.astype(np.float64)
            total += float(np.dot(wide, wide))
    return total if good else -1.0


def first_nonfinite(values: Floats, backend: Backend = NUMPY) -> int | None:
    """Position of the first NaN or Inf, or None."""
    if backend.run(loops.finite, _finite, (values,), (LARGEST,)):
        return None
    return int(np.argmin(np.isfinite(values)))


def _finite(values: Floats, largest: np.float32) -> bool:
    return all(bool(np.isfinite(values[part]).all()) for part in _blocks(values.size))


def narrow(target: NDArray[np.uint16], source: Floats, backend: Backend = NUMPY) -> None:
    """The bits of the nearest bfloat16 numbers, ties to even; a NaN becomes the quiet NaN of its sign."""
    backend.run(loops.narrow, _narrow, (target, source.view(np.uint32)))


def _narrow(target: NDArray[np.uint16], source: NDArray[np.uint32]) -> None:
    for part in _blocks(target.size):
        bits = source[part]
        upper = bits >> np.uint32(16)
        rounded = (bits + (np.uint32(0x7FFF) + (upper & np.uint32(1)))) >> np.uint32(16)
        nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        target[part] = np.where(nan, (upper & np.uint32(0x8000)) | np.uint32(0x7FC0), rounded)


def _blocks(size: int) -> Iterator[slice]:
    return (slice(start, start + BLOCK) for start in range(0, size, BLOCK))
