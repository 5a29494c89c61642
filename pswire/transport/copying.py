"""Copies of large arrays on several cores: one core alone does not use all that the memory gives."""

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Bytes. A piece takes some 0.2 ms, well above what it costs to wake a thread.
PIECE = 2**21
# Below this the caller copies alone.
SHARED = 2 * PIECE
# More than a few do not copy faster, and the cores have other work, too.
THREADS = 4

Pair = tuple[NDArray[Any], NDArray[Any]]


def copy(target: NDArray[Any], source: NDArray[Any]) -> None:
    """``target[...] = source``, of flat arrays of one size."""
    copy_all([(target, source)])


def copy_all(pairs: Iterable[Pair]) -> None:
    """As `copy`, for each (target, source); targets do not overlap. Raises ValueError for sizes that differ."""
    pairs = list(pairs)
    for target, source in pairs:
        if target.shape != source.shape:
            raise ValueError(f"expected {target.size} elements, got {source.size}")
    pool = _pool() if sum(target.nbytes for target, _ in pairs) >= SHARED else None
    if pool is None:
        _copy(pairs)
        return
    # One iterator for all: a free thread takes the next piece.
    pieces = iter([piece for pair in pairs for piece in _pieces(*pair)])
    others = [pool.submit(_copy, pieces) for _ in range(_threads() - 1)]
    try:
        _copy(pieces)
    finally:
        wait(others)
    for other in others:
        other.result()


def _copy(pieces: Iterable[Pair]) -> None:
    for target, source in pieces:
        np.copyto(target, source)


def _pieces(target: NDArray[Any], source: NDArray[Any]) -> list[Pair]:
    step = max(1, PIECE // target.itemsize)
    return [(target[at : at + step], source[at : at + step]) for at in range(0, target.size, step)]


@cache
def _threads() -> int:
    return min(THREADS, len(os.sched_getaffinity(0)))


@cache
def _pool() -> ThreadPoolExecutor | None:
    """Made when first needed; idle ones wait. None on a single core."""
    return ThreadPoolExecutor(_threads() - 1, thread_name_prefix="copy") if _threads() > 1 else None


# A fork has none of its parent's threads.
os.register_at_fork(after_in_child=_pool.cache_clear)
