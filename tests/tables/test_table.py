"""A table on a shard: exact versions, rows only by updates, saved state, growth, bounded memory."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psserver.shard.tables import Table, TableState
from pswire.model.initial_rows import initial_rows
from pswire.model.tables import TableSpec, mix, split
from tests.promises import promise
from tests.repetitions import repetitions
from tests.tables.twin import SGD, Twin, gradient, read_meanwhile, table, update

IDS = [0, 1, -1, -(2**63), 2**63 - 1, 12, 13, 14]
ALL = mix(IDS)
some = st.lists(st.sampled_from(IDS), max_size=6)
ADAM: dict[str, object] = {"name": "adam", "learning_rate": 0.01}
RULES: list[dict[str, object]] = [
    SGD,
    *({"name": name} for name in ("adagrad", "momentum", "rmsprop", "adam", "ftrl")),
    {"name": "rowwise-adagrad"},
]
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: "-".join(map(str, rule.values())))


def digest(*tables: Table) -> str:
    found = hashlib.sha256()
    for each in tables:
        state = each.state()
        for key, row in zip(state.keys, state.values, strict=True):
            found.update(key.tobytes() + row.tobytes())
    return found.hexdigest()


@given(st.lists(st.lists(some, max_size=3), max_size=8), st.data())
def test_every_version_that_is_kept_reads_as_the_twins(
    steps: list[list[list[int]]], data: st.DataObject
) -> None:
    ours, twin = table(), Twin()
    for step, groups in enumerate(steps):
        parts = [gradient(ids, step * 10 + n, factor=1 / (n + 1)) for n, ids in enumerate(groups)]
        keep = data.draw(st.booleans())
        update(ours, *parts, keep=keep)
        twin.update(*parts)
        assert ours.oldest == ours.version or keep
        if data.draw(st.booleans()):
            ours.forget(data.draw(st.integers(0, step + 2)))
        for version in range(ours.oldest, ours.version + 1):
            np.testing.assert_array_equal(ours.read(ALL, version), twin.read(ALL.tolist(), version))
        for version in (ours.oldest - 1, ours.version + 1):
            with pytest.raises(ValueError):
                ours.read(ALL, version)
    assert ours.count == len(twin.versions[-1])


def test_reads_make_no_rows() -> None:
    """Claim 2."""
    ours = table()
    update(ours, gradient([1, 2], 0))
    before = digest(ours)
    for seed in range(1000):
        keys = mix(np.arange(seed, seed + 20))
        ours.read(keys)
        ours.touched(keys)
    assert (ours.count, digest(ours), ours.version) == (2, before, 1)


@promise("No torn reads while updates run.")
def test_readers_in_threads_see_no_mixture() -> None:
    """Claim 6: every number of a row is that of its version while updates run."""
    ours, keys = table(spec=TableSpec("t", 3, "zeros", ())), np.sort(mix(np.arange(2000)))
    ones = np.ones((keys.size, 3), np.float32)
    with read_meanwhile(ours, keys):
        for _ in range(repetitions(300, soak=3000)):
            update(ours, (keys, ones, 1.0), keep=True)


@promise("Undo is bounded by what may be read, and gone after the limit.")
def test_undo_is_bounded_by_what_may_be_read() -> None:
    """Claim 7."""
    ours, part = table(), gradient([1, 2, 3], 0)
    for _ in range(5):
        update(ours, part)
    assert ours.undo_bytes == 0 and ours.oldest == 5
    for _ in range(4):
        update(ours, part, keep=True)
    assert ours.undo_bytes == 4 * 3 * (8 + 3 * 4) and ours.oldest == 5
    ours.forget(8)
    assert ours.undo_bytes == 3 * (8 + 3 * 4) and ours.oldest == 8
    ours.forget(9)
    assert ours.undo_bytes == 0


@promise("Growth changes no read.")
def test_many_inserts_change_no_read() -> None:
    """Claim 12: the index grows by rebuilding; memory per row stays near what embeddings need (claim 20)."""
    ours, first = table(), mix(np.arange(1000))
    update(ours, gradient(list(range(1000)), 0))
    before, rows, step = ours.read(first), repetitions(1_000_000, soak=1_000_000), 0
    while ours.count < rows:
        step += 1
        keys = np.sort(mix(np.arange(step * 50_000, (step + 1) * 50_000)))
        update(ours, (keys, np.ones((keys.size, 3), np.float32), 1.0))
        assert ours.read(first).tobytes() == before.tobytes()
    newest = ours.read(keys)
    np.testing.assert_array_equal(newest, initial_rows(ours.spec, keys) - np.float32(0.25))


@promise("Memory per row; a step is traced once; speed.")
def test_memory_per_row() -> None:
    """Claim 20: at dim 16, row-wise Adagrad keeps 100 to 116 bytes per row, Adagrad 160 to 176, Adam 224 to 244."""
    for rule, most in (("rowwise-adagrad", 116), ("adagrad", 176), ("adam", 244)):
        ours = table({"name": rule}, TableSpec("t", 16))
        keys = np.sort(mix(np.arange(4 * 65_536)))
        update(ours, (keys, np.ones((keys.size, 16), np.float32), 1.0))
        assert ours.nbytes / ours.count <= most * 1.1


@each_rule
def test_restored_tables_go_on_to_the_same_bits(rule: dict[str, object]) -> None:
    """Claims 14, 15: on another number of servers, with slots and counts, for every optimizer."""
    whole = table(rule)
    for seed in range(5):
        update(whole, gradient(list(range(seed, 40, seed + 1)), seed))
    state = whole.state()
    parts = split(state.keys, 3)
    servers = [table(rule) for _ in parts]
    for server, part in zip(servers, parts, strict=True):
        slots = {name: slot[part] for name, slot in state.slots.items()}
        own = TableState(state.keys[part], state.values[part], slots, state.touched[part], state.count[part])
        server.restore(own, whole.version)
    last = gradient(list(range(60)), 99)
    update(whole, last)
    for server, part in zip(servers, split(last[0], 3), strict=True):
        update(server, (last[0][part], last[1][part], 1.0))
    assert digest(*servers) == digest(whole)
    for name, slot in whole.state().slots.items():
        np.testing.assert_array_equal(np.concatenate([each.state().slots[name] for each in servers]), slot)


def test_states_that_do_not_fit_are_refused() -> None:
    ours = table(ADAM)
    update(ours, gradient([1, 2, 3], 0))
    state = ours.state()
    wrong = [
        TableState(state.keys[::-1], state.values, state.slots, state.touched, state.count),
        TableState(state.keys, state.values[:, :2], state.slots, state.touched, state.count),
        TableState(state.keys, state.values, {}, state.touched, state.count),
        TableState(state.keys, state.values * np.float32("nan"), state.slots, state.touched, state.count),
        TableState(state.keys, state.values, state.slots, state.touched[:1], state.count),
    ]
    for each in wrong:
        other = table(ADAM)
        with pytest.raises(ValueError):
            other.restore(each, 1)
        assert (other.count, other.version) == (0, 0)
    with pytest.raises(ValueError):
        ours.restore(state, 1)


def test_a_version_without_this_table_moves_it_on() -> None:
    ours = table()
    update(ours, gradient([1], 0), keep=True)
    update(ours, keep=True)
    assert ours.version == 2 and ours.touched(mix([1, 2])).tolist() == [1, 0]
