"""Functions compiled to machine code by numba. Imported only where code is compiled: to load numba takes half a second.

Numba keeps compiled code on disk: in `NUMBA_CACHE_DIR` if that is set, else beside the source if that folder is
writable, else in the user's cache folder. Code is found again by source, compiler and processor. Where nothing can be
written, as in a container with a read-only root, or where what was written is damaged, code is compiled in memory.

No option relaxes arithmetic: without fastmath, LLVM neither reorders sums nor contracts a product and a sum into one
rounding, so the bits are those of single float32 operations.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.core import sigutils

Function = TypeVar("Function", bound=Callable[..., Any])

# Why code is not kept on disk; empty if it is.
not_kept = ""


def compiled(signature: Any, **options: Any) -> Callable[[Function], Function]:
    """Return a decorator that compiles for arguments of these types. The result releases the GIL when called."""

    def decorate(function: Function) -> Function:
        global not_kept
        settings = {"nogil": True, "error_model": "numpy", **options}
        arguments, _ = sigutils.normalize_signature(signature)
        try:
            made = numba.njit(signature, cache=True, **settings)(function)
            if made.signatures != [arguments]:
                # Processes that write at the same time may give two variants of a function the same file.
                raise ValueError(f"the cache has code for {made.signatures}, expected it for {arguments}")
        except Exception as error:
            # Whatever is wrong with a cache; what is wrong with the function is raised again.
            made = numba.njit(signature, **settings)(function)
            not_kept = str(error)
        return cast(Function, made)

    return decorate


def together(function: Function) -> Function:
    """Decorate a function that is compiled together with its callers."""
    made: Function = numba.njit(error_model="numpy")(function)
    return made
