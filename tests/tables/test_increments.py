"""A full checkpoint of rows and the increments after it are what a full one would be, whatever was removed since."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psserver.checkpoint import CheckpointError, Store
from psserver.checkpoint.increments import MOST, RowFiles, load_rows, row_files, save_rows, usable
from psserver.checkpoint.manifest import FORMAT, FileFacts, Manifest
from psserver.checkpoint.store import name_of
from psserver.optimizers import build
from psserver.service.store import shard_part
from psserver.service.store.shard_part import PartSaver
from psserver.shard import Shard, ShardState
from psserver.shard.tables import Tables
from pswire.model.plan import Plan, VariableSpec, make_plan
from pswire.model.tables import TableSpec, canonical, mix
from tests.promises import promise

RULES: list[dict[str, object]] = [
    {"name": "sgd", "learning_rate": 0.5},
    {"name": "adagrad", "learning_rate": 0.5},
    {"name": "rowwise-adagrad", "learning_rate": 0.5},
    {"name": "momentum", "learning_rate": 0.5},
    {"name": "adam", "learning_rate": 0.5},
    {"name": "ftrl", "learning_rate": 0.5},
]
SPEC = TableSpec("items", 2, "uniform", (-1.0, 1.0), 3, evict_age=3, evict_every=2)
OTHER = TableSpec("users", 3, "zeros", ())
JOB = "job"


def plan(rule: dict[str, object] = RULES[0], evict_every: int = 2) -> Plan:
    specs = replace(SPEC, evict_every=evict_every), OTHER
    tables = [replace(spec, optimizer=canonical(rule)) for spec in specs]
    return make_plan([VariableSpec("bias", (1,))], 1, tables)


def made(rule: dict[str, object], evict_every: int = 2) -> Tables:
    return Tables(plan(rule, evict_every), 0, build(RULES[0]))


def update(tables: Tables, ids: list[int], seed: int) -> None:
    keys = np.sort(mix(np.unique(np.array(ids, np.int64))))
    dice = np.random.default_rng(seed)
    rows = [(keys, dice.normal(size=(keys.size, t.spec.dim)).astype(np.float32)) for t in tables.tables]
    tables.add(rows, 1.0, 0)
    assert not tables.advance(1.0, 1.0)[1]
    tables.committed()


def about(store: Store, entry: int, files: dict[str, FileFacts]) -> Manifest:
    """A complete checkpoint of these files."""
    found = Manifest(
        *(FORMAT, JOB, entry, 0, 0.0, 1, 1, 0, plan().fingerprint, tuple(plan().variables)),
        *([], {}, {}, {}, files),
    )
    store.complete(found)
    return found


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and np.array_equal(one[name], other[name]) for name in one
    )


def rows_of(tables: Tables) -> dict[str, np.ndarray]:
    return {name: array for name, array in tables.rows_saved().items() if name.startswith("table/")}


STEPS = st.lists(st.lists(st.integers(0, 20), max_size=5), min_size=1, max_size=14)


@promise(
    "A full checkpoint and increments are a full one, with evictions; one more update has equal bits for each "
    "rule."
)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["name"]))
@settings(max_examples=10, deadline=None)
@given(steps=STEPS, every=st.integers(1, 4))
def test_increments_add_up_and_training_goes_on_with_equal_bits(
    rule: dict[str, object], steps: list[list[int]], every: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store, tables, base = Store(tmp_path_factory.mktemp("saved") / "checkpoints"), made(rule), None
    for number, ids in enumerate([[], *steps]):
        if number:
            update(tables, ids, number)
        if number % every:
            continue
        since = None if base is None else base.version
        arrays = {n: a for n, a in tables.rows_saved(since).items() if n.startswith("table/")}
        former, base = base, save_rows(store, name_of(number, JOB), 0, number, [arrays], base)
        tables.rows_written(number)
        found = about(store, number, base.files)
        if former is not None:
            # Older checkpoints go; what they had is in this one.
            shutil.rmtree(store.root / former.name)
        read = load_rows(store, base.name, found, 0)
        assert same(read, rows_of(tables))
        fresh = made(rule)
        fresh.restore(read, [], number, {})
        twin = made(rule)
        twin.restore(tables.rows_saved(), [], number, {})
        for each in (fresh, twin):
            update(each, [1, 5, 19], 99)
        assert same(fresh.rows_saved(), twin.rows_saved())
    assert base is not None and len(row_files(found, 0)) == number // every + 1


def test_an_increment_has_only_what_changed(tmp_path: Path) -> None:
    store, tables = Store(tmp_path / "checkpoints"), made(RULES[1], evict_every=1)
    update(tables, list(range(5000)), 1)
    base = save_rows(store, name_of(1, JOB), 0, 1, [rows_of(tables)], None)
    assert usable(store, base)
    update(tables, [3, 4], 2)
    changed = tables.rows_saved(1)
    assert changed["table/1/keys"].size == 2 and changed["table/0/gone"].size == 0
    update(tables, [5], 3)
    update(tables, [6], 4)
    # All but the rows of versions 2 to 4 are too old.
    assert tables.rows_saved(1)["table/0/gone"].size == 4996
    after = save_rows(store, name_of(2, JOB), 0, 2, [only(changed)], base)
    whole, increment = (facts.bytes for facts in after.files.values())
    assert increment < whole / 20
    # As long as all increments are smaller than all rows, and few, another may follow.
    facts = next(iter(base.files.values()))
    assert replace(after, files={str(k): facts for k in range(3)}).full
    assert replace(after, files={str(k): replace(facts, bytes=1) for k in range(MOST + 1)}).full
    assert not usable(store, None) and not usable(store, RowFiles("gone", 1, base.files))


def only(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array for name, array in arrays.items() if name.startswith("table/")}


def test_files_that_cannot_be_taken_up_are_named(tmp_path: Path) -> None:
    store, tables = Store(tmp_path / "checkpoints"), made(RULES[0])
    base = save_rows(store, name_of(1, JOB), 0, 0, [rows_of(tables)], None)
    shutil.rmtree(store.root / base.name)
    with pytest.raises(CheckpointError, match="cannot be a link"):
        save_rows(store, name_of(2, JOB), 0, 0, [rows_of(tables)], base)


def test_changes_of_other_rows_are_refused(tmp_path: Path) -> None:
    store, tables = Store(tmp_path / "checkpoints"), made(RULES[0])
    full = rows_of(tables)
    base = save_rows(store, name_of(1, JOB), 0, 0, [full], None)
    # No increment: it does not say what went.
    wrong = save_rows(store, name_of(2, JOB), 0, 0, [full], base)
    with pytest.raises(CheckpointError, match="no changes of those before it"):
        load_rows(store, wrong.name, about(store, 2, wrong.files), 0)


def test_a_file_of_rows_is_a_series_of_pieces_or_a_single_one(tmp_path: Path) -> None:
    store, tables = Store(tmp_path / "checkpoints"), made(RULES[4])
    update(tables, list(range(300)), 1)
    update(tables, list(range(200)), 2)
    saved = tables.snapshot()
    pieces = list(saved.pieces(None, 1))
    tables.drop(saved)
    assert len(pieces) == 2
    expected = rows_of(tables)
    for number, series in ((1, pieces), (2, [expected])):
        files = save_rows(store, name_of(number, JOB), 0, 2, series, None).files
        assert same(load_rows(store, name_of(number, JOB), about(store, number, files), 0), expected)
    # The first piece alone, as a file that was cut there would be.
    (file,) = files
    path = store.root / name_of(2, JOB) / file
    both = path.read_bytes()
    path.write_bytes(both + both)
    with pytest.raises(CheckpointError, match=f"{file}: expected {len(both)} bytes, it has {2 * len(both)}"):
        store.manifest(name_of(2, JOB))
    with pytest.raises(CheckpointError, match="SHA-256"):
        store.series(name_of(2, JOB), file, files[file])


class Later:
    """An event loop whose work on other threads is done when a test says so, in the order that it says."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def run_in_executor(self, pool: object, work: Callable[..., Any], *given: Any) -> Any:
        future = mock.Mock(exception=lambda: None)

        def do() -> None:
            future.result.return_value = work(*given)
            future.add_done_callback.call_args.args[0](future)

        self.waiting.append(do)
        return future

    def do(self, number: int = 0) -> None:
        self.waiting.pop(number)()


def shard_of(tables: Tables, layout: Plan) -> Any:
    """A shard with these tables, and an array besides."""
    facts = Shard(layout, 0, build(RULES[0])).state().facts
    arrays = {"slot/0/m": np.zeros(1, np.float32)}
    return SimpleNamespace(
        tables=tables, views=lambda: ShardState(replace(facts, version=tables.tables[0].version), arrays)
    )


@promise("Copies that are made while a checkpoint is written are increments, too.")
@pytest.mark.parametrize("first", ["the writing", "the copy"])
def test_a_copy_that_begins_while_another_is_written_is_an_increment_and_lacks_no_row_that_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Whichever ends first: the end of the writing forgets rows that went before it, and the copy has to name them."""
    monkeypatch.setattr(shard_part, "LARGE_PASS", 0)
    loop, parts, rule = Later(), dict[int, shard_part.Part](), RULES[0]
    tables = made(rule, evict_every=1)
    shard = shard_of(tables, plan(rule))
    ledger = mock.Mock(take=lambda *_: None)
    saver = PartSaver(SimpleNamespace(loop=loop), 0, ledger, lambda: None, lambda: None)  # type: ignore[arg-type]
    saver.store, saver.parts = Store(tmp_path / "checkpoints"), parts
    update(tables, list(range(20)), 1)
    # Arrays are copied, then written with the rows.
    assert saver.save(1, JOB, shard)
    for _ in range(2):
        loop.do()
    # Rows 0 to 19 are too old by version 4.
    for seed in (2, 3, 4):
        update(tables, [50], seed)
    assert rows_of(tables)["table/0/keys"].size == 1
    assert saver.save(2, JOB, shard)
    loop.do()
    # The second checkpoint is not written yet.
    update(tables, [51], 5)
    assert saver.save(3, JOB, shard)
    expected = rows_of(tables)
    update(tables, [52], 6)
    loop.do(["the writing", "the copy"].index(first))
    for _ in range(2):
        loop.do()
    assert not loop.waiting and all(not each.error for each in parts.values()), parts
    found = about(saver.store, 3, dict(parts[3].files))
    assert same(load_rows(saver.store, name_of(3, JOB), found, 0), expected)
    # All rows, what the second changed, and what the third did.
    assert len(row_files(found, 0)) == 3
    saver.close()
