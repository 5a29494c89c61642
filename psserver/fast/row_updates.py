"""Updates of rows where they lie, compiled by numba: `psserver.fast.rows.RowUpdate`.

A pass goes by blocks of rows that stay in the first-level cache: it saves the values of a block, tells so, advances its
numbers by the rule's own loop, and writes them back. So each line of a row comes from memory once, and the lines of the
next rows are on their way meanwhile. Imported when the first is compiled.
"""

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from psserver.fast.loops import LARGEST, SWEEP_EVERY, RowPass
from psserver.fast.row_kernels import AHEAD, copy_words, expect_row
from psserver.fast.rows import Floats, KeptRows, PassNumbers, RowMemory, RowUpdate, Slots
from pswire.compiled import compiled, together

# Rows of a block.
_BLOCK = 64


@intrinsic  # type: ignore[untyped-decorator]
def _tell(context: Any, address: Any, number: Any) -> Any:
    """Write a number to an address: after all that was written before, and before all that will be."""
    del context, address, number

    def build(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        builder.store_atomic(arguments[1], pointer, "release", 8)
        builder.fence("seq_cst")
        return target.get_dummy_value()

    return types.void(types.int64, types.int64), build


@intrinsic  # type: ignore[untyped-decorator]
def _word(context: Any, address: Any) -> Any:
    """Return the word at an address."""
    del context, address

    def build(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(32).as_pointer()), align=4)

    return types.uint32(types.int64), build


@intrinsic  # type: ignore[untyped-decorator]
def _put_word(context: Any, address: Any, word: Any) -> Any:
    """Write the word at an address."""
    del context, address, word

    def build(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], builder.inttoptr(arguments[0], ir.IntType(32).as_pointer()), align=4)
        return target.get_dummy_value()

    return types.void(types.int64, types.uint32), build


def compile_update(wanted: RowPass) -> RowUpdate:
    """Compile the pass."""
    known = {
        **{"np": np, "expect": expect_row, "copy": copy_words, "tell": _tell, "word": _word},
        **{"put_word": _put_word, "loop": _numbers_of(wanted), "__name__": __name__},
    }
    lines = _source(wanted)
    name = "rowwise_adagrad" if wanted.loop is None else wanted.loop.function.__name__
    # Numba's cache knows functions by name and file.
    unique = f"update_{name}_{hashlib.sha256(lines.encode()).hexdigest()[:16]}"
    exec(compile(f"def {unique}({_ARGUMENTS}):\n{lines}", __file__, "exec"), known)  # noqa: S102
    run = compiled(_signature())(known[unique])
    return lambda *given: _call(run, *given)


def _call(
    run: Callable[..., bool],
    memory: RowMemory,
    slots: Slots,
    g: Floats,
    saved: KeptRows,
    version: int,
    numbers: PassNumbers,
) -> NDArray[np.uint32] | None:
    counts, kept = np.empty(slots.size, np.uint32), np.zeros(slots.size, np.uint32)
    good = run(
        *(slots, memory.addresses, memory.words, memory.bits, saved.values.shape[1], g.reshape(-1)),
        *(saved.values.reshape(-1), saved.filled, counts, kept, np.uint32(version)),
        *numbers,
    )
    return None if good else kept


def _signature() -> Any:
    def array(kind: Any, *, written: bool = False) -> Any:
        return types.Array(kind, 1, "C", readonly=not written)

    floats, whole = array(types.float32), types.int64
    return types.boolean(
        *(array(types.int32), array(whole), whole, whole, whole, floats),
        *(array(types.float32, written=True), array(whole, written=True)),
        *(array(types.uint32, written=True), array(types.uint32, written=True), types.uint32),
        *(floats, types.float32, types.float32, types.float32, floats, floats),
    )


_ARGUMENTS = (
    "slots, chunks, words, bits, dim, g, values, filled, counts, kept, version, "
    "scalars, factor, scale, tiny, roots, rests"
)


def _source(wanted: RowPass) -> str:
    """Return the body of the pass. `s0` and so on: a slot's numbers of a block."""
    slots = range(len(wanted.widths))
    wide = [str(width) if width else "dim" for width in wanted.widths]
    first = ["dim" + "".join(f" + {each}" for each in wide[:k]) for k in slots]
    from_row = [f"copy(row + 4 * ({first[k]}), t{k} + 4 * k * {wide[k]}, {wide[k]})" for k in slots]
    to_row = [f"copy(t{k} + 4 * k * {wide[k]}, row + 4 * ({first[k]}), {wide[k]})" for k in slots]
    made = [f"s{k} = np.empty({_BLOCK} * {wide[k]}, np.float32)" for k in slots]
    made += [f"t{k} = s{k}.ctypes.data" for k in slots]
    own = wanted.own >= 0
    if own:
        made += [f"{name} = np.zeros({_BLOCK} * dim, np.float32)" for name in ("alphas", "tinies")]
        made += ["swept = False"]
    numbers = [f"scalars[{k}]" if k != wanted.own else "alphas[: m * dim]" for k in range(wanted.scalars)]
    numbers += ["factor", "scale", "tinies[: m * dim]" if own else "tiny"]
    states = [f"s{k}[: m * {wide[k]}]" for k in slots]
    part = "begin * dim : end * dim"
    arguments = ", ".join([f"values[{part}]", f"g[{part}]", "out[: m * dim]", *states, *numbers])
    by_age = f"""
        for k in range(m):
            t = np.int64(counts[begin + k])
            at = min(t, roots.size - 1)
            alphas[k * dim : (k + 1) * dim] = scalars[{wanted.own}] * roots[at] / rests[at]
            if t % {SWEEP_EVERY} == 0:
                swept = True
                tinies[k * dim : (k + 1) * dim] = tiny"""
    clear = """
        if swept:
            tinies[:] = np.float32(0)
            swept = False"""
    step = "loop(dim, m, " if wanted.loop is None else "loop("
    return f"""
    n, mask, good = slots.size, (1 << bits) - 1, True
    out = np.empty({_BLOCK} * dim, np.float32)
    {"; ".join(made) or "pass"}
    to_values, to_out, to_filled = values.ctypes.data, out.ctypes.data, filled.ctypes.data
    for i in range({AHEAD}):
        expect(chunks, words, bits, slots, i, 0, words)
    for begin in range(0, n, {_BLOCK}):
        end = min(begin + {_BLOCK}, n)
        m = end - begin
        for k in range(m):
            i = begin + k
            expect(chunks, words, bits, slots, i + {AHEAD}, 0, words)
            slot = np.int64(slots[i])
            row = chunks[slot >> bits] + 4 * (slot & mask) * words
            copy(row, to_values + 4 * i * dim, dim)
            {"; ".join(from_row) or "pass"}
            counts[i] = word(row + 4 * (words - 1)) + np.uint32(1)
        tell(to_filled, end){by_age if own else ""}
        if not {step}{arguments}):
            good = False
            for k in range(m * dim):
                if np.isnan(out[k]):
                    out[k] = values[begin * dim + k]
                    kept[begin + k // dim] += np.uint32(1){clear if own else ""}
        for k in range(m):
            i = begin + k
            slot = np.int64(slots[i])
            row = chunks[slot >> bits] + 4 * (slot & mask) * words
            copy(to_out + 4 * k * dim, row, dim)
            {"; ".join(to_row) or "pass"}
            put_word(row + 4 * (words - 2), version)
            put_word(row + 4 * (words - 1), counts[i])
    return good
"""


def _numbers_of(wanted: RowPass) -> Any:
    """Return what advances the numbers of a block."""
    if wanted.loop is None:
        return _rowwise
    return together(wanted.loop.function)


@together
def _rowwise(
    dim: int,
    rows: int,
    x: Floats,
    g: Floats,
    out: Floats,
    a: Floats,
    rate: np.float32,
    epsilon: np.float32,
    factor: np.float32,
    scale: np.float32,
    tiny: np.float32,
) -> bool:
    """Advance rows by row-wise Adagrad; mark those that keep their numbers by NaN in `out`.

    `tiny` is not used: no sum of squares is close to zero for long.
    """
    total, sums, good = np.zeros(rows, np.float32), np.empty(rows, np.float32), True
    own, squares = np.empty(rows * dim, np.float32), np.empty(rows * dim, np.float32)
    for k in range(own.size):
        own[k] = g[k] * factor * scale
        squares[k] = own[k] * own[k]
    # Column by column: the sums of several rows do not wait for each other.
    for j in range(dim):
        for i in range(rows):
            total[i] += squares[i * dim + j]
    for i in range(rows):
        sums[i] = a[i] + total[i] / np.float32(dim)
        total[i] = rate / (np.sqrt(sums[i]) + epsilon)
        good = good & (abs(sums[i]) <= LARGEST)
    for i in range(rows):
        share, at = total[i], i * dim
        for j in range(dim):
            out[at + j] = x[at + j] - own[at + j] * share
    for k in range(out.size):
        good = good & (abs(out[k]) <= LARGEST)
    for i in range(0 if good else rows):
        fine = abs(sums[i]) <= LARGEST
        for k in range(i * dim, (i + 1) * dim):
            fine = fine & (abs(out[k]) <= LARGEST)
        if not fine:
            out[i * dim : (i + 1) * dim] = np.float32(np.nan)
            sums[i] = a[i]
    for i in range(rows):
        a[i] = sums[i]
    return good
