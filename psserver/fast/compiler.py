"""Compilation of loops to machine code by numba. The only module that imports the compiler.

Numba caches compiled code on disk: in `NUMBA_CACHE_DIR` if that is set, else beside the source if that folder is
writable, else in the user's cache folder. The cache is keyed by source, compiler and processor. If no folder is
writable, every start compiles again.

No option relaxes arithmetic: without fastmath, LLVM neither reorders sums nor contracts a product and a sum into one
rounding, so the bits are numpy's. Only in a pass that returns a sum (`Loop.sums`) may it reorder that sum, which takes
a quarter of the time.
"""

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import numba
from numba import types

from psserver.optimizers import Loop
from pswire.logs.events import event

log = logging.getLogger("ps-server")

Compiled = Callable[..., Any]
Function = TypeVar("Function", bound=Compiled)

# A compiled loop also accepts a writable array for a read-only one, and an aligned array for an unaligned one.
_TYPES: dict[str, Any] = {
    "r": types.Array(types.float32, 1, "C", readonly=True),
    "w": types.Array(types.float32, 1, "C"),
    "u": types.Array(types.float32, 1, "C", readonly=True, aligned=False),
    "W": types.Array(types.uint32, 1, "C"),
    "h": types.Array(types.uint16, 1, "C", readonly=True, aligned=False),
    "H": types.Array(types.uint16, 1, "C"),
    "b": types.Array(types.uint32, 1, "C", readonly=True),
    "f": types.float32,
    "-": types.none,
}


def compile_loop(loop: Loop, variant: str) -> Compiled:
    """Compile the loop for arguments of this variant (`Loop.variant`). The result releases the GIL when called."""
    signature = tuple(_TYPES[letter] for letter in variant)
    try:
        return _jit(loop, signature, cache=True)
    except RuntimeError as error:
        # Numba raises this if no cache folder is writable.
        if "cache" not in str(error):
            raise
        log.info("compiled code is not kept: %s", error, extra=event("code_not_kept"))
        return _jit(loop, signature, cache=False)


def _jit(loop: Loop, signature: tuple[Any, ...], *, cache: bool) -> Compiled:
    relaxed: Any = {"reassoc"} if loop.sums else False
    compiled: Compiled = numba.njit(
        signature, nogil=True, cache=cache, error_model="numpy", fastmath=relaxed
    )(loop.function)
    return compiled


def cached(function: Function, signature: Any) -> Function:
    """Compile a function of this signature. The result releases the GIL when called."""
    try:
        compiled: Function = numba.njit(signature, cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError as error:
        # Numba raises this if no cache folder is writable.
        if "cache" not in str(error):
            raise
        compiled = numba.njit(signature, nogil=True, error_model="numpy")(function)
    return compiled
