"""Compilation of loops to machine code. The bits are numpy's (`pswire.compiled`).

Only in a pass that returns a sum (`Loop.sums`) may the compiler reorder that sum, which takes a quarter of the time.
"""

from collections.abc import Callable
from typing import Any

from numba import types

from psserver.fast.loops import Loop
from pswire.compiled import compiled

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


def compile_loop(loop: Loop, variant: str) -> Callable[..., Any]:
    """Compile the loop for arguments of this variant (`Loop.variant`)."""
    signature = tuple(_TYPES[letter] for letter in variant)
    relaxed: Any = {"reassoc"} if loop.sums else False
    return compiled(signature, fastmath=relaxed)(loop.function)
