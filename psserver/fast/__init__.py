"""Passes over arrays at memory speed: compiled loops, several threads, no GIL.

    prepare([*optimizer.variants()])   # compiles, or loads what an earlier process compiled
    optimizer.update(..., backend=Backend(threads=2))

What nobody has prepared is compiled when it first runs. Only then is the compiler (numba) imported. Optimizers and
shards, which run their loops here, know neither threads nor a compiler.

loops           passes as loops to compile
backend         runs them, on several threads
ready           what is compiled in this process
rows            kernels of sparse tables, and what they take
compiler        machine code of loops
row_kernels     compiled kernels of tables
row_updates     compiled updates of rows where they lie
"""

from psserver.fast.backend import ALONE, Backend
from psserver.fast.loops import LARGEST, SWEEP_EVERY, AnyArray, Loop, RowPass, Variant, loop
from psserver.fast.ready import not_kept, prepare, update_of

__all__ = [
    "ALONE",
    "LARGEST",
    "SWEEP_EVERY",
    "AnyArray",
    "Backend",
    "Loop",
    "RowPass",
    "Variant",
    "loop",
    "not_kept",
    "prepare",
    "update_of",
]
