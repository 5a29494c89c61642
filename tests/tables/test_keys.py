"""Ids, keys, buckets and initial rows: pure functions, with numpy's and TensorFlow's bits where they have a twin."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pswire.model.initial_rows import initial_rows
from pswire.model.tables import (
    BUCKETS,
    TableSpec,
    bucket,
    bucket_range,
    check_keys,
    check_tables,
    mix,
    split,
    sums,
    tables_from_json,
    unique,
    unmix,
)
from pswire.model.variables import PlanError
from tests.promises import promise

EDGES = [0, 1, -1, -(2**63), 2**63 - 1]
ids = st.lists(st.one_of(st.sampled_from(EDGES), st.integers(-(2**63), 2**63 - 1), st.integers(0, 9)))


@promise(
    "Any int64 is an id; keys that are unsorted, repeated, another server's or too many are refused, and "
    "change nothing."
)
@given(ids)
def test_every_id_has_a_key_of_its_own_and_comes_back(given_ids: list[int]) -> None:
    keys = mix(np.array(given_ids, np.int64))
    assert len(set(keys.tolist())) == len(set(given_ids))
    assert unmix(keys).tolist() == given_ids


def test_the_mix_is_murmurs() -> None:
    def finaliser(bits: int) -> int:
        bits ^= bits >> 33
        bits = bits * 0xFF51AFD7ED558CCD % 2**64
        bits ^= bits >> 33
        bits = bits * 0xC4CEB9FE1A85EC53 % 2**64
        return bits ^ bits >> 33

    assert mix(EDGES).tolist() == [finaliser(each % 2**64) for each in EDGES]


@pytest.mark.parametrize("wrong", [[1.5], ["a"], [2**63], [True]])
def test_other_ids_are_refused(wrong: list[object]) -> None:
    with pytest.raises((TypeError, OverflowError)):
        mix(wrong)  # type: ignore[arg-type]


@given(ids, st.integers(1, 9))
def test_servers_share_sorted_keys_in_slices(given_ids: list[int], servers: int) -> None:
    keys, inverse = unique(np.array(given_ids, np.int64))
    parts = split(keys, servers)
    assert np.concatenate([keys[part] for part in parts]).tolist() == keys.tolist()
    assert unmix(keys[inverse]).tolist() == given_ids
    for server, part in enumerate(parts):
        start, stop = bucket_range(server, servers)
        assert check_keys(keys[part], start, stop) is None
        assert all(start <= each < stop for each in bucket(keys[part]))
    assert bucket_range(servers - 1, servers)[1] == BUCKETS


def test_keys_of_others_unsorted_and_repeated_keys_are_named() -> None:
    keys = np.sort(mix(np.arange(100)))
    assert check_keys(keys[::-1], 0, BUCKETS) is not None
    assert check_keys(np.repeat(keys, 2), 0, BUCKETS) is not None
    assert check_keys(keys, 0, BUCKETS // 2) is not None
    assert check_keys(keys, BUCKETS // 2, BUCKETS) is not None


@promise("Placement is even, and the same in every process.")
def test_placement_is_even() -> None:
    """Claim 13: a batch's unique rows on 8 servers."""
    sizes = [part.stop - part.start for part in split(np.sort(mix(np.arange(20_000))), 8)]
    assert max(sizes) / np.mean(sizes) <= 1.08


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(-9, 9, width=32)), min_size=1))
def test_duplicates_are_added_in_the_order_of_positions(pairs: list[tuple[int, float]]) -> None:
    keys, inverse = unique([each for each, _ in pairs])
    found = sums(inverse, np.array([[g, -g] for _, g in pairs], np.float32), keys.size)
    for key, row in zip(unmix(keys), found, strict=True):
        total = np.float32(0)
        for each, g in pairs:
            total = total + np.float32(g) if each == key else total
        assert row.tolist() == [total, -total]


@promise("An initial row depends on seed, table, id and column only; mean and variance fit.")
@pytest.mark.parametrize("name", ["zeros", "uniform", "normal"])
def test_initial_rows_depend_on_nothing_else(name: str) -> None:
    """Claim 1."""
    spec = TableSpec.from_json({"name": "t", "dim": 5, "initializer": name})
    keys = mix(np.arange(-50, 50))
    rows = initial_rows(spec, keys)
    order = np.random.default_rng(0).permutation(100)
    assert initial_rows(spec, keys[order]).tobytes() == rows[order].tobytes()
    for other in ({"seed": 1}, {"name": "u"}):
        different = initial_rows(TableSpec.from_json({**spec.to_json(), **other}), keys)
        assert (different != rows).all() or name == "zeros"


def test_initial_rows_are_frozen() -> None:
    """What a log's replay relies on, for all time."""
    keys = mix([7, -1])
    uniform = TableSpec("t", 2, "uniform", (-1.0, 1.0), 3)
    normal = TableSpec("t", 2, "normal", (0.0, 1.0), 3)
    assert initial_rows(uniform, keys).view(np.uint32).tolist() == [
        [1063386152, 3204749466],
        [1056456132, 1057100312],
    ]
    assert initial_rows(normal, keys).view(np.uint32).tolist() == [
        [3212166656, 1054113792],
        [1044830208, 3205878784],
    ]


def test_initial_rows_have_mean_and_variance() -> None:
    keys = mix(np.arange(50_000))
    uniform = initial_rows(TableSpec("t", 4, "uniform", (-1.0, 3.0)), keys)
    assert abs(uniform.mean() - 1) < 0.02 and abs(uniform.std() - 4 / 12**0.5) < 0.02
    assert uniform.min() >= -1 and uniform.max() <= 3
    normal = initial_rows(TableSpec("t", 4, "normal", (0.5, 2.0)), keys)
    assert abs(normal.mean() - 0.5) < 0.02 and abs(normal.std() - 2) < 0.02
    shifted = (normal - normal.mean()) / normal.std()
    assert abs((shifted**4).mean() - 2.9) < 0.1


def test_specifications_round_trip() -> None:
    made = {
        "name": "t",
        "dim": 8,
        "initializer": {"name": "normal", "stddev": 0.1},
        "optimizer": {"name": "sgd"},
    }
    spec = TableSpec.from_json(made)
    assert spec.numbers == (0.0, 0.1)
    assert TableSpec.from_json(spec.to_json()) == spec
    assert tables_from_json([spec.to_json()]) == (spec,)


@pytest.mark.parametrize(
    "wrong",
    [
        {"dim": 0},
        {"dim": 2.0},
        {"name": ""},
        {"seed": -1},
        {"buckets": 1024},
        {"initializer": "glorot"},
        {"initializer": {"name": "uniform", "stddev": 1}},
        {"initializer": {"name": "uniform", "low": 2, "high": 1}},
        {"initializer": {"name": "normal", "stddev": float("nan")}},
        {"optimizer": "sgd"},
        {"optimizer": {"name": float("nan")}},
        {"dims": 3},
    ],
)
def test_specifications_out_of_bounds_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(PlanError):
        TableSpec.from_json({"name": "t", "dim": 4, **wrong})


def test_two_tables_of_one_name_are_refused() -> None:
    with pytest.raises(PlanError):
        check_tables([TableSpec("t", 4), TableSpec("t", 5)])
