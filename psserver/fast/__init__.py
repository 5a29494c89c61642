"""Passes over arrays at memory speed: compiled loops, several threads, no GIL.

    backend = FastBackend(threads=2)
    backend.prepare([optimizer.variant(), *variants])   # compiles in the background
    optimizer.update(..., backend=backend)

Only `prepare` imports the compiler (numba). Until a loop is compiled, or where there is no compiler, its numpy fallback
runs: same bits, less speed. This package is the shell around psserver.optimizers and psserver.shard, which know neither
threads nor a compiler.
"""

from psserver.fast.backend import FastBackend, ParallelRunner

__all__ = ["ParallelRunner", "FastBackend"]
