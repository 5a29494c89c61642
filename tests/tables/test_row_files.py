"""Rows in a checkpoint: all of them, in pieces, and a table that goes on from them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from psserver.checkpoint import CheckpointError, Store
from psserver.checkpoint.manifest import FORMAT, FileFacts, Manifest
from psserver.checkpoint.rows import load_rows, save_rows
from psserver.checkpoint.store import name_of
from psserver.optimizers import build
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


@promise("A table that is read from a checkpoint goes on with equal bits, whatever its rule.")
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["name"]))
def test_a_table_that_is_read_goes_on_with_equal_bits(rule: dict[str, object], tmp_path: Path) -> None:
    """With rows that have gone, and come again."""
    store, tables = Store(tmp_path / "checkpoints"), made(rule)
    for number, ids in enumerate([[1, 2, 3], [4], [5], [5, 6], [1, 7]], start=1):
        update(tables, ids, number)
    files = save_rows(store, name_of(1, JOB), 0, [rows_of(tables)])
    fresh = made(rule)
    fresh.restore(load_rows(store, name_of(1, JOB), about(store, 1, files), 0), [], 5, {})
    for each in (fresh, tables):
        update(each, [1, 5, 19], 99)
    assert same(fresh.rows_saved(), tables.rows_saved())


def only(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array for name, array in arrays.items() if name.startswith("table/")}


def test_a_file_of_rows_is_a_series_of_pieces_or_a_single_one(tmp_path: Path) -> None:
    store, tables = Store(tmp_path / "checkpoints"), made(RULES[4])
    update(tables, list(range(300)), 1)
    update(tables, list(range(200)), 2)
    saved = tables.snapshot()
    pieces = list(saved.pieces(1))
    tables.drop(saved)
    assert len(pieces) == 2
    expected = rows_of(tables)
    for number, series in ((1, pieces), (2, [expected])):
        files = save_rows(store, name_of(number, JOB), 0, series)
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
    """A Runtime whose work on other threads is done when a test says so, in the order that it says."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def pool(self, threads: int, name: str) -> "Later":
        return self

    def now(self) -> float:
        return 0.0

    def close(self) -> None:
        """Do nothing."""

    def start(self, work: Callable[[], object], ended: Callable[[None], object]) -> None:
        def do() -> None:
            work()
            ended(None)

        self.waiting.append(do)

    def do(self, number: int = 0) -> None:
        self.waiting.pop(number)()


def shard_of(tables: Tables, layout: Plan) -> Any:
    """A shard with these tables, and an array besides."""
    facts = Shard(layout, 0, build(RULES[0])).state().facts
    arrays = {"slot/m": np.zeros(1, np.float32)}
    return SimpleNamespace(
        tables=tables, views=lambda: ShardState(replace(facts, version=tables.tables[0].version), arrays)
    )
