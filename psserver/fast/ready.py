"""What is compiled in this process. Any thread may ask; what is missing is compiled, one after another."""

from collections.abc import Callable, Iterable
from importlib import import_module
from threading import RLock
from typing import Any

from psserver.fast import rows as kernels
from psserver.fast.loops import RowPass, Variant
from psserver.fast.rows import RowUpdate

Compiled = Callable[..., Any]

_lock = RLock()
_loops: dict[Variant, Compiled] = {}
_updates: dict[RowPass, RowUpdate] = {}


def loop_of(variant: Variant) -> Compiled:
    """Return the machine code of a loop."""
    found = _loops.get(variant)
    if found is None:
        with _lock:
            if variant not in _loops:
                _loops[variant] = import_module("psserver.fast.compiler").compile_loop(*variant)
            found = _loops[variant]
    return found


def update_of(wanted: RowPass) -> RowUpdate:
    """Return the machine code of an update of rows where they lie."""
    found = _updates.get(wanted)
    if found is None:
        with _lock:
            if wanted not in _updates:
                _updates[wanted] = import_module("psserver.fast.row_updates").compile_update(wanted)
            found = _updates[wanted]
    return found


def not_kept() -> str:
    """Return why compiled code is not kept on disk; "" if it is."""
    found: str = import_module("pswire.compiled").not_kept
    return found


def prepare(
    variants: Iterable[Variant],
    *,
    rows: bool = False,
    passes: Iterable[RowPass] = (),
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Compile loops, or load what an earlier process compiled. `rows`: also the kernels of tables.

    `passes`: updates of rows where they lie. Ends after the loop that is being compiled (below a second) once `stop`
    returns True.
    """
    work: list[Callable[[], object]] = [lambda each=each: loop_of(each) for each in variants]  # type: ignore[misc]
    if rows:
        work.append(kernels.compiled)
    work += [lambda each=each: update_of(each) for each in passes]  # type: ignore[misc]
    for compile_next in work:
        if stop():
            return
        compile_next()
