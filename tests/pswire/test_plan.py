"""The layout: its guarantee on random models, exact round trips, determinism, clear refusals."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from pswire.model.plan import Kind, Plan, PlanError, VariableSpec, explain_mismatch, make_plan, weights_sha256
from tests.repetitions import repetitions
from tests.sentences import Recorder

SHAPES = st.lists(st.integers(1, 40), max_size=3).map(tuple)
KINDS: list[Kind] = ["trainable", "state"]
MODELS = st.lists(st.tuples(SHAPES, st.sampled_from(KINDS)), min_size=1, max_size=12).map(
    lambda entries: [VariableSpec(f"v{i}", shape, kind=kind) for i, (shape, kind) in enumerate(entries)]
)

# Kernels, biases and BatchNorm vectors of a 50-layer residual network (He et al. 2016), whose
# convolutions are coarse: axis 0 of a 3x3 kernel has three rows only.
STAGES = [(64, 256, 3), (128, 512, 4), (256, 1024, 6), (512, 2048, 3)]


def residual_network() -> list[VariableSpec]:
    shapes: list[tuple[int, ...]] = [(7, 7, 3, 64)]
    previous = 64
    for inner, outer, blocks in STAGES:
        for _ in range(blocks):
            shapes += [(1, 1, previous, inner), (3, 3, inner, inner), (1, 1, inner, outer)]
            shapes += [(width,) for width in (inner, inner, outer) for _ in range(4)]
            previous = outer
    shapes += [(2048, 1000), (1000,)]
    return [VariableSpec(f"v{i}", shape) for i, shape in enumerate(shapes)]


def values_for(variables: list[VariableSpec]) -> list[np.ndarray]:
    generator = np.random.default_rng(7)
    return [generator.standard_normal(spec.shape).astype(np.float32) for spec in variables]


def unevenness(plan: Plan) -> float:
    sizes = [shard.nbytes for shard in plan.shards]
    return max(sizes) * len(sizes) / sum(sizes)


@given(MODELS, st.integers(1, 12))
def test_every_row_lies_in_exactly_one_place(variables: list[VariableSpec], servers: int) -> None:
    plan = make_plan(variables, servers)
    owned = [[0] * spec.rows for spec in variables]
    for shard in plan.shards:
        offset = 0
        for piece in shard.slices:
            spec = variables[piece.variable]
            assert piece.offset == offset and piece.size == (piece.stop - piece.start) * spec.width
            assert (spec.kind == "trainable") == (piece.offset < shard.trainable)
            offset += piece.size
            for row in range(piece.start, piece.stop):
                owned[piece.variable][row] += 1
        assert offset == shard.elements == shard.trainable + shard.state
    assert all(count == 1 for rows in owned for count in rows)


@given(MODELS, st.integers(1, 12))
@settings(max_examples=repetitions(100, soak=5000))
def test_guarantee_of_balance(variables: list[VariableSpec], servers: int) -> None:
    plan = make_plan(variables, servers)
    mean = 4 * sum(spec.size for spec in variables) / servers
    row = 4 * max(spec.width for spec in variables)
    largest = max(shard.nbytes for shard in plan.shards)
    assert largest <= max(1.05 * mean, mean + (1 - 1 / servers) * row) + 1e-9
    if row <= 0.05 * mean:
        assert largest <= 1.05 * mean + 1e-9
        # Few pieces: a split per server, and some more for the gaps when there are many servers.
        assert sum(len(shard.slices) for shard in plan.shards) <= len(variables) + servers * (
            1 + math.log2(servers)
        )


@pytest.mark.parametrize("servers", [2, 3, 4, 8, 16])
def test_coarse_convolutions_are_balanced_too(servers: int) -> None:
    variables = residual_network()
    plan = make_plan(variables, servers)
    assert unevenness(plan) <= 1.05
    assert sum(len(shard.slices) for shard in plan.shards) <= len(variables) + 2 * servers


@given(MODELS, st.integers(1, 12))
def test_scatter_then_gather_is_the_identity(variables: list[VariableSpec], servers: int) -> None:
    plan, arrays = make_plan(variables, servers), values_for(variables)
    flats = plan.scatter(arrays)
    assert [flat.nbytes for flat in flats] == [shard.nbytes for shard in plan.shards]
    for array, back in zip(arrays, plan.gather(flats), strict=True):
        assert back.dtype == np.float32 and np.array_equal(array, back) and array.shape == back.shape


def test_whole_variables_are_gathered_without_a_copy() -> None:
    variables = [VariableSpec("a", (4, 4)), VariableSpec("b", (4, 4)), VariableSpec("s", ())]
    plan = make_plan(variables, 2)
    flats = plan.scatter([np.ones((4, 4)), np.ones((4, 4)), np.float32(2)])
    arrays = plan.gather(flats)
    assert all(any(np.shares_memory(array, flat) for flat in flats) for array in arrays)
    assert plan.gather([flat.copy() for flat in flats])[2] == 2


def test_a_small_model_on_one_server_stays_whole() -> None:
    variables = [
        VariableSpec("kernel", (64, 128)),
        VariableSpec("bias", (128,)),
        VariableSpec("mean", (128,)),
    ]
    assert [(p.variable, p.start, p.stop) for p in make_plan(variables, 1).shards[0].slices] == [
        (0, 0, 64),
        (1, 0, 128),
        (2, 0, 128),
    ]


def test_more_servers_than_rows_leave_some_empty() -> None:
    plan = make_plan([VariableSpec("w", (2, 3)), VariableSpec("b", ())], 5)
    assert sorted(shard.elements for shard in plan.shards) == [0, 0, 1, 3, 3]
    arrays = plan.gather(plan.scatter([np.arange(6).reshape(2, 3), 7]))
    assert arrays[0].tolist() == [[0, 1, 2], [3, 4, 5]] and arrays[1] == 7


def test_state_lies_behind_the_trainable_part() -> None:
    variables = [VariableSpec("mean", (3,), kind="state"), VariableSpec("gamma", (3,))]
    plan = make_plan(variables, 1)
    assert plan.scatter([[1, 2, 3], [4, 5, 6]])[0].tolist() == [4, 5, 6, 1, 2, 3]
    assert (plan.shards[0].trainable, plan.shards[0].state) == (3, 3)


def test_other_floats_and_integers_are_cast() -> None:
    import ml_dtypes

    variables = [VariableSpec("a", (2,)), VariableSpec("b", (2,)), VariableSpec("c", (1,))]
    arrays: list[ArrayLike] = [np.array([1.5, 1e300]), np.array([1, 2], ml_dtypes.bfloat16), [3]]
    assert make_plan(variables, 1).scatter(arrays)[0].tolist() == [1.5, math.inf, 1, 2, 3]


def test_not_contiguous_arrays_scatter_right() -> None:
    square = np.arange(12, dtype=np.float32).reshape(3, 4)
    plan = make_plan([VariableSpec("t", (4, 3))], 2)
    assert np.array_equal(plan.gather(plan.scatter([square.T]))[0], square.T)


# Golden: if this changes, raise ALGORITHM, because servers and workers of two versions would disagree.
def test_golden_layout_and_fingerprint() -> None:
    variables = [
        VariableSpec("dense/kernel", (64, 128)),
        VariableSpec("dense/bias", (128,)),
        VariableSpec("norm/mean", (128,), kind="state"),
        VariableSpec("out/kernel", (128, 10), "bfloat16"),
        VariableSpec("out/bias", (10,)),
    ]
    plan = make_plan(variables, 2)
    layout = [[(p.variable, p.start, p.stop, p.offset) for p in shard.slices] for shard in plan.shards]
    assert layout == [
        [(0, 0, 38, 0), (4, 0, 10, 4864)],
        [(0, 38, 64, 0), (1, 0, 128, 3328), (3, 0, 128, 3456), (2, 0, 128, 4736)],
    ]
    assert plan.fingerprint == "98dabeabded127ae156b48ad3fd8ae828b2dfb959235917b706b31e6a94e3f09"


@given(MODELS, st.integers(1, 5), st.data())
def test_any_change_changes_the_fingerprint(
    variables: list[VariableSpec], servers: int, data: st.DataObject
) -> None:
    plan = make_plan(variables, servers)
    assert make_plan(list(variables), servers).fingerprint == plan.fingerprint
    assert make_plan(variables, servers + 1).fingerprint != plan.fingerprint
    number = data.draw(st.integers(0, len(variables) - 1))
    spec = variables[number]
    other: Kind = "state" if spec.kind == "trainable" else "trainable"
    for changed in (
        VariableSpec(spec.name + "'", spec.shape, spec.dtype, spec.kind),
        VariableSpec(spec.name, (*spec.shape, 1), spec.dtype, spec.kind),
        VariableSpec(spec.name, spec.shape, "float64", spec.kind),
        VariableSpec(spec.name, spec.shape, spec.dtype, other),
    ):
        variant = [*variables[:number], changed, *variables[number + 1 :]]
        assert make_plan(variant, servers).fingerprint != plan.fingerprint
        assert f"variable {number}: expected {spec}, got {changed}" == explain_mismatch(variables, variant)


@pytest.mark.parametrize(
    ("variables", "servers", "words"),
    [
        ([], 1, "expected at least one variable"),
        ([VariableSpec("a", (1,))], 0, "servers: expected a number from 1 to 4096, got 0"),
        ([VariableSpec("a", (1,))], 5000, "got 5000"),
        ([VariableSpec("a", (1,)), VariableSpec("a", (2,))], 1, "two variables have this name"),
        ([VariableSpec("", (1,))], 1, "variable 0: expected a name"),
        ([VariableSpec("a", (2, 0))], 1, r"'a': expected dimensions >= 1, got the shape \[2, 0\]"),
        ([VariableSpec("a", (-1,))], 1, r"got the shape \[-1\]"),
        ([VariableSpec("a", (2**30, 2**30))], 1, r"at most 2\*\*40 elements"),
        ([VariableSpec("a", (1,), "float23")], 1, "got 'float23'; did you mean \"float32\"?"),
        ([VariableSpec("a", (1,), "int32")], 1, "expected a floating dtype, got 'int32'"),
        ([VariableSpec("a", (1,), kind="frozen")], 1, "got 'frozen'"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_planned_is_refused(variables: list[VariableSpec], servers: int, words: str) -> None:
    with pytest.raises(PlanError, match=words.replace("?", r"\?")):
        make_plan(variables, servers)


def test_arrays_and_payloads_that_do_not_fit_are_refused(sentences: Recorder) -> None:
    plan = make_plan([VariableSpec("a", (2, 3)), VariableSpec("b", ())], 2)
    with pytest.raises(PlanError) as refused:
        plan.scatter([np.zeros((2, 3))])
    sentences.check(refused)
    with pytest.raises(PlanError) as refused:
        plan.scatter([np.zeros((3, 2)), 0.0])
    sentences.check(refused)
    with pytest.raises(PlanError) as refused:
        plan.scatter([np.zeros((2, 3)), 1j])
    sentences.check(refused)
    with pytest.raises(PlanError) as refused:
        plan.scatter([np.zeros((2, 3)), "x"])
    sentences.check(refused)
    good = plan.scatter([np.zeros((2, 3)), 0.0])
    with pytest.raises(PlanError) as refused:
        plan.gather(good[:1])
    sentences.check(refused)
    with pytest.raises(PlanError) as refused:
        plan.gather([good[0], good[1][:-1]])
    sentences.check(refused)
    with pytest.raises(PlanError) as refused:
        plan.gather([good[0].astype(np.float64), good[1]])
    sentences.check(refused)


@given(MODELS, st.integers(1, 6))
def test_weights_digest_does_not_depend_on_the_servers(variables: list[VariableSpec], servers: int) -> None:
    arrays, plan = values_for(variables), make_plan(variables, servers)
    digest = weights_sha256(variables, plan.gather(plan.scatter(arrays)))
    assert digest == weights_sha256(variables, arrays)
    arrays[0] = np.nextafter(arrays[0], np.float32(np.inf))
    assert digest != weights_sha256(variables, arrays)


def test_describe_tells_bytes_and_homes() -> None:
    variables = [VariableSpec("embedding", (1000, 64)), VariableSpec("mean", (64,), kind="state")]
    text = make_plan(variables, 2).describe()
    assert "2 variables, 250.2 KiB on 2 servers, max/mean 1.00" in text
    assert "server 0: " in text and "256 B of it state" in text
    assert "250.0 KiB  'embedding' float32[1000, 64] (trainable) on servers 0, 1" in text
