"""The compiled kernels of tables: the same results, to the bit, as those in numpy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psserver.fast import rows as compiled
from psserver.fast.rows import SINGLE, RowMemory, parts_of
from psserver.shard.tables import TableState
from psserver.shard.tables.index import FULLEST, Index
from pswire.model.tables import BUCKETS, bucket, mix, sums, unique, uniques, unmix
from tests.tables import numpy_rows
from tests.tables.twin import gradient, table, update

BOTH = (numpy_rows, compiled)
KERNELS = (
    "find",
    "find_all",
    "insert",
    "move",
    "gather",
    "gather_parts",
    "scatter_parts",
    "union",
    "spread",
)
sizes = st.integers(0, 60)
seeds = st.integers(0, 2**32 - 1)


def load(index: Index) -> float:
    """Return the part of places that are taken, of parts that have keys."""
    return index.count / max(1, sum(len(part) for part in index.places.parts if len(part) > 2))


def floats(random: np.random.Generator, *shape: int) -> np.ndarray:
    """Return numbers of every magnitude, with zeros, infinities and NaN among them."""
    bits = random.integers(0, 2**32, shape, np.uint32)
    ordinary = random.standard_normal(shape).astype(np.float32)
    return np.where(random.random(shape) < 0.3, bits.view(np.float32), ordinary).astype(np.float32)


def same(one: np.ndarray, other: np.ndarray) -> bool:
    """Return True for equal bits; a NaN is equal to any other."""
    if one.dtype == np.float32:
        nan = np.isnan(one)
        return bool((nan == np.isnan(other)).all()) and one[~nan].tobytes() == other[~nan].tobytes()
    return one.tobytes() == other.tobytes()


@given(sizes, sizes, st.sampled_from([1, 64]), seeds)
def test_an_index_finds_what_either_kernel_has_inserted(
    inserted: int, asked: int, single: int, seed: int
) -> None:
    """With one part, and with one for each bucket, through growth and division."""
    random = np.random.default_rng(seed)
    # Few buckets, and few different bits behind them, so that keys meet.
    keys = random.integers(0, 3, inserted, np.uint64) << np.uint64(52)
    keys = np.unique(
        keys
        + (random.integers(0, 9, inserted, np.uint64) << np.uint64(46))
        + np.arange(inserted, dtype=np.uint64)
    )
    slots = dict(zip(keys.tolist(), random.permutation(keys.size).tolist(), strict=True))
    wanted = np.concatenate([random.permutation(keys), random.integers(0, 2**63, asked, np.uint64)])
    indexes = [Index(single), Index(single)]
    done = 0
    while done < keys.size:
        some = keys[done : done + int(random.integers(1, 20))]
        done += some.size
        for index, own in zip(indexes, BOTH, strict=True):
            with pytest.MonkeyPatch.context() as patch:
                for name in KERNELS:
                    patch.setattr(compiled, name, getattr(own, name))
                index.insert(some, np.array([slots[key] for key in some.tolist()], np.int32))
        # Each finds what the other has inserted, too.
        for index, other in zip(indexes * 2, [*BOTH, *BOTH[::-1]], strict=True):
            found = np.empty(wanted.size, np.int32)
            other.find(index.places, wanted, found)
            known = dict(zip(keys[:done].tolist(), range(done), strict=True))
            assert found.tolist() == [slots[key] if key in known else -1 for key in wanted.tolist()]
    for index in indexes:
        sorted_keys, of = index.sorted()
        assert sorted_keys.tolist() == keys.tolist() and of.tolist() == [slots[key] for key in keys.tolist()]
        odd = (np.arange(BUCKETS) % 2).astype(bool)
        chosen, own = index.sorted(odd)
        assert chosen.tolist() == keys[odd[bucket(keys)]].tolist()
        assert own.tolist() == [slots[key] for key in chosen.tolist()]
        index.remove(random.permutation(keys[::2]))
        assert index.sorted()[0].tolist() == keys[1::2].tolist() and index.count == keys[1::2].size
        assert index.find(wanted).tolist() == [
            slots[key] if key in set(keys[1::2].tolist()) else -1 for key in wanted.tolist()
        ]
        # What went may come back.
        index.insert(keys[::2].copy(), np.array([slots[key] for key in keys[::2].tolist()], np.int32))
        assert index.sorted()[0].tolist() == keys.tolist()
        assert load(index) <= 0.75


def test_a_large_index_is_divided() -> None:
    index, keys = Index(), np.unique(mix(np.arange(300_000)))
    slots, parts = np.arange(keys.size, dtype=np.int32), []
    for start in range(0, keys.size, 60_000):
        part = slice(start, start + 60_000)
        index.insert(keys[part], slots[part])
        parts.append(len(index.places.parts))
    assert 180_000 < FULLEST * SINGLE < 240_000 and parts == [1, 1, 1, BUCKETS, BUCKETS]
    assert np.array_equal(index.find(keys), slots) and load(index) <= 0.75


@given(st.lists(st.integers(1, 40), min_size=2, max_size=4), sizes, sizes, seeds)
def test_rows_come_and_go_alike(widths: list[int], present: int, absent: int, seed: int) -> None:
    random, bits = np.random.default_rng(seed), 4
    ends = tuple(np.cumsum(widths).tolist())
    slots = random.permutation(np.concatenate([np.arange(present), np.full(absent, -1)])).astype(np.int32)
    fill, memories, gathered = random.integers(0, 2**32, (4, 16, ends[-1]), np.uint32), [], []
    kept = slots[slots >= 0]
    values = random.integers(0, 2**32, (kept.size, ends[0]), np.uint32)
    others = random.integers(0, 2**32, kept.size * ends[-1], np.uint32)
    for kernels in BOTH:
        chunks = tuple(chunk.copy() for chunk in fill)
        memory = RowMemory(chunks, np.array([chunk.ctypes.data for chunk in chunks]), ends, bits)
        kernels.scatter_parts(memory, kept, values, others)
        whole = np.zeros(slots.size * ends[-1], np.uint32)
        kernels.gather_parts(memory, slots, whole)
        for part, (start, end) in zip(
            parts_of(whole, ends), zip((0, *ends), ends, strict=False), strict=True
        ):
            one = np.zeros((slots.size, end - start), np.uint32)
            kernels.gather(memory, start, slots, one)
            assert same(one, part) and not part[slots < 0].any()
        memories.append(np.concatenate(chunks))
        gathered.append(whole)
    assert same(*memories) and same(*gathered)
    back = parts_of(gathered[0], ends)
    assert same(back[0][slots >= 0], values)
    assert all(
        same(mine[slots >= 0], theirs)
        for mine, theirs in zip(back[1:], parts_of(others, ends)[1:], strict=True)
    )


@given(sizes, sizes, st.integers(1, 5), seeds)
def test_payloads_merge_alike(one: int, other: int, dim: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    first, second = (np.unique(random.integers(0, 80, n, np.uint64)) for n in (one, other))
    keys = [kernels.union(first, second) for kernels in BOTH]
    assert keys[0].tolist() == keys[1].tolist() == sorted({*first.tolist(), *second.tolist()})
    rows = floats(random, second.size, dim)
    out = [np.full((keys[0].size, dim), 7, np.float32) for _ in BOTH]
    for kernels, wide in zip(BOTH, out, strict=True):
        kernels.spread(keys[0], second, rows, wide)
    assert same(*out)


@given(
    st.lists(st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63), 7, 8, 9]) | st.integers(0, 99), max_size=200),
    seeds,
)
def test_batches_are_summed_as_numpy_does(given_ids: list[int], seed: int) -> None:
    ids, random = np.array(given_ids, np.int64), np.random.default_rng(seed)
    keys, inverse = unique(ids)
    expected, positions = np.unique(mix(ids), return_inverse=True)
    assert same(keys, expected) and inverse.tolist() == positions.tolist() and inverse.dtype == np.int32
    gradients, total = floats(random, ids.size, 3), np.zeros((keys.size, 3), np.float32)
    with np.errstate(all="ignore"):
        np.add.at(total, positions, gradients)
    assert same(sums(inverse, gradients, keys.size), total)


@given(st.lists(st.lists(st.integers(-3, 30), max_size=50), max_size=4), st.integers(0, 300))
def test_ids_of_several_tables_are_those_of_each(several: list[list[int]], chosen: int) -> None:
    """Also ids that somebody has chosen, whose keys are not spread at all."""
    given_ids = [np.array(ids, np.int64) for ids in several] + [
        unmix(np.arange(chosen, dtype=np.uint64)[::-1])
    ]
    for ids, (keys, inverse) in zip(given_ids, uniques(given_ids), strict=True):
        expected, positions = np.unique(mix(ids), return_inverse=True)
        assert same(keys, expected) and inverse.tolist() == positions.tolist()


@pytest.mark.parametrize("name", ["sgd", "adagrad", "rowwise-adagrad", "adam", "ftrl"])
def test_compiled_tables_are_those_in_numpy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, slots and ages of three contributions an update, in chunks that grow."""
    fast, slow = table({"name": name}), table({"name": name})
    some, read = mix(np.arange(3000)), []
    for each in (fast, slow):
        for step in range(6):
            parts = [gradient(list(range(n, 400 * (step + 1), n + 1)), step + n, 0.5) for n in range(3)]
            update(each, *[(keys, rows.copy(), factor) for keys, rows, factor in parts], keep=True)
        read.append([each.read(some, version) for version in range(each.version)])
        for kernel in KERNELS:
            monkeypatch.setattr(compiled, kernel, getattr(numpy_rows, kernel))
    mine, other = fast.state(), slow.state()
    for one, two in zip(_arrays(mine), _arrays(other), strict=True):
        assert one.size and same(one, two)
    for one, two in zip(*read, strict=True):
        assert same(one, two)


def _arrays(state: TableState) -> list[np.ndarray]:
    return [state.keys, state.values, state.touched, state.count, *state.slots.values()]
