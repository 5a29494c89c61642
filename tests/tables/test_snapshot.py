"""Copies of tables that are made while updates go on: each is of the version at which it began."""

import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psserver.checkpoint import Store, name_of
from psserver.checkpoint.rows import load_rows
from psserver.optimizers import build
from psserver.service.store import shard_part
from psserver.service.store.shard_part import PartSaver
from psserver.shard.tables import Tables, snapshot, table
from psserver.shard.tables.index import Index
from psserver.shard.tables.saved import joined
from pswire.model.plan import Plan, make_plan
from pswire.model.tables import TableSpec, canonical, mix
from pswire.model.variables import VariableSpec
from tests.promises import promise
from tests.repetitions import repetitions
from tests.tables.test_row_files import Later, about, same, shard_of

JOB = "job"
RULE = canonical({"name": "rowwise-adagrad", "learning_rate": 0.1})
SPECS = (
    TableSpec("items", 2, "uniform", (-1.0, 1.0), 3, RULE, evict_age=2, evict_every=1),
    TableSpec("users", 3, optimizer=RULE),
)


def plan() -> Plan:
    return make_plan([VariableSpec("bias", (1,))], 1, SPECS)


def made() -> Tables:
    return Tables(plan(), 0, build({"name": "sgd"}))


def update(tables: Tables, ids: list[int]) -> None:
    keys = np.sort(mix(np.unique(np.array(ids, np.int64))))
    dice = np.random.default_rng(tables.tables[0].version)
    rows = [(keys, dice.normal(size=(keys.size, t.spec.dim)).astype(np.float32)) for t in tables.tables]
    tables.add(rows, 1.0, 0)
    assert not tables.advance(1.0, 1.0)[1]
    tables.committed()


class Interleaved:
    """Calls something before and after the places of each piece of a copy are read."""

    def __init__(self, patch: pytest.MonkeyPatch, piece: int) -> None:
        patch.setattr(snapshot, "PIECE", piece)
        self.then: Callable[[], None] = lambda: None
        within = Index.within

        def both(index: Index, start: int, stop: int) -> Any:
            self.then()
            found = within(index, start, stop)
            self.then()
            return found

        patch.setattr(Index, "within", both)


IDS = st.lists(st.integers(0, 40), max_size=12)


@promise("Updates go on while a checkpoint's rows are copied; the copy is of its version.")
@settings(max_examples=repetitions(20, soak=1000))
@given(
    before=st.lists(IDS, max_size=4),
    during=st.lists(IDS, min_size=1, max_size=12),
    size=st.sampled_from([0, 1, 300, 1 << 20]),
)
def test_a_copy_has_the_rows_of_its_version_whatever_is_updated_made_and_evicted(
    before: list[list[int]], during: list[list[int]], size: int
) -> None:
    """Whole, or in pieces of about `size` bytes."""
    with pytest.MonkeyPatch.context() as patch:
        between = Interleaved(patch, 8)
        tables, twin = made(), made()
        for ids in before:
            update(tables, ids)
            update(twin, ids)
        left = iter(during)

        def one_more() -> None:
            ids = next(left, None)
            if ids is not None:
                update(tables, ids)

        saved = tables.snapshot()
        between.then = one_more
        found = joined(list(saved.pieces(size))) if size else saved.copy()
        between.then = lambda: None
        tables.drop(saved)
        for _ in during:
            one_more()
        assert same(found, twin.rows_saved())
        for ids in during:
            update(twin, ids)
    assert same(tables.rows_saved(), twin.rows_saved()), "copies change nothing"


def test_updates_flat_out_in_another_thread_leave_no_trace_in_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "PIECE", 64)
    tables, dice = made(), np.random.default_rng(0)
    for _ in range(3):
        update(tables, list(range(2000)))
    expected, saved = tables.rows_saved(), tables.snapshot()
    with ThreadPoolExecutor(1) as other:
        copying = other.submit(saved.copy)
        while not copying.done():
            update(tables, dice.integers(0, 4000, 200).tolist())
        assert same(copying.result(), expected)
    tables.drop(saved)


@promise(
    "A checkpoint's rows are copied in pieces of bounded memory, and so is what was saved for them freed."
)
def test_pieces_take_little_memory_however_many_rows_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "PIECE", 1 << 10)
    wide = make_plan([VariableSpec("bias", (1,))], 1, [TableSpec("wide", 64, optimizer=RULE)])
    tables = Tables(wide, 0, build({"name": "sgd"}))
    update(tables, list(range(20_000)))
    saved = tables.snapshot()
    whole = sum(array.nbytes for array in tables.rows_saved().values())
    tracemalloc.start()
    try:
        sizes = [sum(array.nbytes for array in piece.values()) for piece in saved.pieces(1 << 16)]
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    tables.drop(saved)
    assert sum(sizes) == whole > 5e6 and len(sizes) > 8
    assert most < whole / 3


def test_what_was_saved_ends_with_the_pieces_that_it_was_saved_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "PIECE", 64)
    tables = made()
    update(tables, list(range(2000)))
    saved = tables.snapshot()
    update(tables, list(range(2000)))
    held = [tables.tables[0].saved_bytes for _ in saved.pieces(1)]
    assert held[0] > 0 and held == sorted(held, reverse=True)
    assert not any(table.saved_bytes for table in tables.tables)
    tables.drop(saved)


def test_a_copy_counts_what_it_saves_until_it_is_dropped() -> None:
    tables = made()
    update(tables, [1, 2, 3])
    update(tables, [1, 2, 3])
    saved, before = tables.snapshot(), tables.nbytes
    # A key, values, a sum, and two numbers of its age; of three rows of each table.
    most = 3 * (8 + 8 + 4 + 8) + 3 * (8 + 12 + 4 + 8)
    for _ in range(2):
        update(tables, [1, 2, 3])
        assert tables.nbytes - before == most, "once is enough"
    tables.drop(saved)
    assert tables.nbytes == before
    update(tables, [1, 2, 3])
    assert tables.nbytes == before


def test_updates_go_on_while_rows_are_being_copied_for_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_part, "LARGE_PASS", 0)
    loop, parts, tables, freed = Later(), dict[int, shard_part.Part](), made(), mock.Mock()
    shard = shard_of(tables, plan())
    ledger = mock.Mock(take=lambda *_: None)
    saver = PartSaver(loop, 0, ledger, lambda: None, freed)  # type: ignore[arg-type]
    saver.store, saver.parts = Store(tmp_path / "checkpoints"), parts
    update(tables, list(range(20)))
    expected = {n: a for n, a in tables.rows_saved().items() if n.startswith("table/")}
    assert saver.save(1, JOB, shard) and not freed.called
    loop.do()
    assert freed.call_count == 1, "arrays are copied, rows are not"
    update(tables, list(range(10, 30)))
    loop.do()
    assert not loop.waiting and freed.call_count == 1
    found = about(saver.store, 1, dict(parts[1].files))
    assert same(load_rows(saver.store, name_of(1, JOB), found, 0), expected)
    saver.close()


def test_a_restore_in_pieces_gives_the_same_table(monkeypatch: pytest.MonkeyPatch) -> None:
    tables, whole, pieces = made(), made(), made()
    for _ in range(2):
        update(tables, list(range(100)))
    whole.restore(tables.rows_saved(), [], 2, {})
    monkeypatch.setattr(table, "RESTORED", 7)
    pieces.restore(tables.rows_saved(), [], 2, {})
    assert same(pieces.rows_saved(), whole.rows_saved())
    assert pieces.nbytes == whole.nbytes
