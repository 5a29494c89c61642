"""Folding, compensation and checks of incoming payloads: formulas, and in compiled code, against numpy."""

from collections.abc import Iterator

import numpy as np
import pytest

from psserver.fast import Backend
from psserver.optimizers import build
from psserver.shard import Shard, arithmetic
from psserver.shard.payload_checks import norm_of, same_norm
from psserver.shard.staging import Slot
from pswire.model.plan import VariableSpec, make_plan

SIZE = (1 << 16) + 77
INF, NAN = np.float32("inf"), np.float32("nan")


@pytest.fixture(scope="module", params=[1, 3], ids=["1 thread", "3 threads"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    with Backend(request.param, grain=1000) as backend:
        yield backend


def floats(seed: int, size: int = SIZE) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.tobytes() == b.tobytes()


@pytest.mark.parametrize("kept", [1.0, 0.3, 0.0])
@pytest.mark.parametrize("factor", [1.0, 1 / 3, -2.0])
def test_fold_is_two_products_and_a_sum(backend: Backend, kept: float, factor: float) -> None:
    total, values = floats(1), floats(2)
    expected = total * np.float32(kept) + values * np.float32(factor)
    arithmetic.fold(total, kept, values.copy(), factor, backend)
    assert same_bits(total, expected)


def test_a_sum_of_many_is_taken_from_left_to_right(backend: Backend) -> None:
    """The first factor stays pending until the second fold; the bits are those of folding one by one."""
    parts, factors = [floats(i) for i in range(5)], [0.2, 1.0, 0.7, 1 / 3, 5.0]
    expected = parts[0] * np.float32(factors[0])
    for part, factor in zip(parts[1:], factors[1:], strict=True):
        expected = expected + part * np.float32(factor)
    total, pending = parts[0].copy(), factors[0]
    for part, factor in zip(parts[1:], factors[1:], strict=True):
        arithmetic.fold(total, pending, part.copy(), factor, backend)
        pending = 1.0
    assert same_bits(total, expected)


@pytest.mark.parametrize("strength", [0.04, 2.0])
def test_compensation(backend: Backend, strength: float) -> None:
    """DC-ASGD, Zheng et al. 2017, eq. 10."""
    g, now, base = floats(1), floats(2), floats(3)
    expected = g + (now - base) * g * g * np.float32(strength)
    arithmetic.compensate(g, now, base, strength, backend)
    assert same_bits(g, expected)


def test_compensation_without_staleness_changes_nothing(backend: Backend) -> None:
    g, now = floats(1), floats(2)
    arithmetic.compensate(g, now, now.copy(), 0.5, backend)
    assert same_bits(g, floats(1))


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("at", [0, 15, 4096, SIZE - 1])
def test_the_first_bad_number_is_found(backend: Backend, bad: np.float32, at: int) -> None:
    values = floats(1)
    values[at:] = bad
    assert arithmetic.first_nonfinite(values, backend) == at
    assert arithmetic.squares(values, backend) is None
    target = np.zeros(SIZE, np.float32)
    assert arithmetic.copy_squares(target, values, backend) is None
    assert same_bits(target, values)


def test_the_largest_finite_numbers_are_good(backend: Backend) -> None:
    """Their squares overflow in float32: they are added up in float64."""
    values = np.full(SIZE, np.finfo(np.float32).max, np.float32)
    values[::2] *= -1
    assert arithmetic.first_nonfinite(values, backend) is None
    assert arithmetic.copy_squares(np.empty(SIZE, np.float32), values, backend) is not None


@pytest.mark.parametrize("size", [0, 1, 3, 1000])
def test_small_arrays(backend: Backend, size: int) -> None:
    values, target = floats(1, size), np.empty(size, np.float32)
    assert arithmetic.first_nonfinite(values, backend) is None
    assert arithmetic.copy_squares(target, values, backend) is not None
    assert same_bits(target, values)
    arithmetic.fold(target, 1.0, values.copy(), 1.0, backend)
    assert same_bits(target, values + values)


@pytest.mark.parametrize("shift", [1, 2, 3, 8])
def test_a_source_need_not_be_aligned_nor_writable(backend: Backend, shift: int) -> None:
    """Chunks lie at any offset in their message."""
    values = floats(5)
    message = bytes(shift) + values.tobytes()
    source = np.frombuffer(message, np.float32, offset=shift)
    target = np.empty(SIZE, np.float32)
    assert arithmetic.copy_squares(target, source, backend) is not None
    assert same_bits(target, values)
    halves = np.frombuffer(
        bytes(shift) + (values.view(np.uint32) >> 16).astype("<u2").tobytes(), "<u2", offset=shift
    )
    assert arithmetic.copy_squares(target, halves, backend) is not None
    assert same_bits(target, (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32))


def test_every_bfloat16_is_widened_as_ml_dtypes_does(backend: Backend) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    bits = np.arange(1 << 16, dtype=np.uint16)
    target = np.empty(bits.size, np.float32)
    assert arithmetic.copy_squares(target, bits, backend) is None
    expected = bits.view(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(target, expected)
    number = ~np.isnan(expected)
    assert same_bits(target[number], expected[number])


@pytest.mark.parametrize("bits", [0x7F80, 0xFF80, 0x7FC0, 0xFFFF])
def test_a_bad_bfloat16_is_found(backend: Backend, bits: int) -> None:
    source = np.full(SIZE, 0x3F80, np.uint16)
    source[70_001 % SIZE] = bits
    target = np.empty(SIZE, np.float32)
    assert arithmetic.copy_squares(target, source, backend) is None
    assert arithmetic.first_nonfinite(target, backend) == 70_001 % SIZE


def test_floats_are_narrowed_as_ml_dtypes_does(backend: Backend) -> None:
    """Every upper half with lower halves around each tie: ordinary, subnormal, infinite, NaN."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    source = (upper[:, None] | lower).ravel().view(np.float32)
    target = np.empty(source.size, np.uint16)
    arithmetic.narrow(target, source, backend)
    with np.errstate(invalid="ignore"):
        expected = source.astype(ml_dtypes.bfloat16).view(np.uint16)
    np.testing.assert_array_equal(target, expected)


def test_scale_by_one_leaves_the_bits(backend: Backend) -> None:
    values = floats(1)
    arithmetic.scale(values, 1.0)
    assert same_bits(values, floats(1))
    arithmetic.scale(values, 0.1)
    assert same_bits(values, floats(1) * np.float32(0.1))


@pytest.mark.parametrize("mean", [0.0, 1.0, 3.0])
def test_state_moves_by_the_weighted_mean_of_its_deltas(mean: float) -> None:
    state, deltas, out = floats(1), floats(2), np.empty(SIZE, np.float32)
    arithmetic.add_mean(state, deltas, mean, out)
    assert same_bits(out, state if mean == 0 else deltas / np.float32(mean) + state)


@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
def test_a_piece_that_comes_in_is_copied_or_named(backend: Backend, wire: str) -> None:
    """The name is the variable and the index within it, although the piece begins elsewhere."""
    plan = make_plan([VariableSpec("dense/kernel", (30, 4)), VariableSpec("dense/bias", (4,))], 1)
    shard = Shard(plan, 0, build({"name": "sgd"}), backend=backend)
    kernel, bias = (np.full(shape, 1.5, np.float32) for shape in ((30, 4), (4,)))
    good = plan.scatter([kernel, bias])[0]
    kernel[7, 2] = NAN
    bad = plan.scatter([kernel, bias])[0]
    slot, start = Slot(1, np.zeros_like(good)), 9
    for payload, answer in ((good, None), (bad, "nan at dense/kernel[7, 2]")):
        source = payload if wire == "float32" else (payload.view(np.uint32) >> 16).astype(np.uint16)
        assert shard.checks.copy_in(slot, source[start:], start) == answer
    assert same_bits(slot.values[:start], np.zeros(start, np.float32))


@pytest.mark.parametrize("wire", ["float32", "bfloat16", "in place"])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_payload_is_measured_as_it_comes(backend: Backend, wire: str, size: int) -> None:
    """In pieces of any size; the norm is that of what lies in the slot, and of the gradient alone."""
    plan = make_plan([VariableSpec("w", (2000,)), VariableSpec("mean", (600,), kind="state")], 1)
    shard = Shard(plan, 0, build({"name": "sgd"}), backend=backend)
    payload = floats(3, 2600)
    # Its square is beyond float32.
    payload[1700] = -3e20
    slot = Slot(1, np.zeros(2600, np.float32))
    for start in range(0, 2600, size):
        part = payload[start : start + size]
        if wire == "in place":
            slot.values[start : start + size] = part
            assert shard.checks.measure(slot, start, start + part.size) is None
        else:
            source = part if wire == "float32" else (part.view(np.uint32) >> 16).astype(np.uint16)
            assert shard.checks.copy_in(slot, source, start) is None
    expected = float(np.linalg.norm(slot.values[:2000].astype(np.float64)))
    assert norm_of([slot.squares]) == float(f"{expected:.6g}")


def test_a_norm_has_no_more_digits_than_any_order_of_summing_agrees_on() -> None:
    values = floats(4).astype(np.float64) ** 2
    forward, backward = float(np.cumsum(values)[-1]), float(np.cumsum(values[::-1])[-1])
    assert forward != backward and norm_of([forward]) == norm_of([backward])
    assert same_norm(1.23456, 1.23457) and not same_norm(1.23456, 1.23466)
    assert norm_of([9.0, 16.0]) == 5.0 and norm_of([0.0]) == 0.0
