"""Admission and eviction, beside a twin of dictionaries: the same rows on any number of servers, at every version."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psserver.optimizers import build
from psserver.optimizers.rows import rows_optimizer
from psserver.shard.tables import Table
from pswire.model.initial_rows import admitted, initial_rows
from pswire.model.plan import PlanError
from pswire.model.tables import Keys, TableSpec, bucket, mix, split
from tests.promises import promise
from tests.repetitions import repetitions
from tests.tables.twin import advance

DIM, IDS = 2, 40
BASE = TableSpec("t", DIM, "uniform", (-1.0, 1.0), 5, evict_every=3)
KEYS = np.sort(mix(np.arange(IDS)))
RATE = np.float32(0.5)
SPECS = {
    "age": replace(BASE, evict_age=4),
    "all": replace(BASE, evict_age=5, evict_every=2, admit=0.7),
    "admit": replace(BASE, admit=0.4),
}


class Twin:
    """Rows by key: (row, last version that changed it, how many did)."""

    def __init__(self, spec: TableSpec) -> None:
        self.spec, self.version = spec, 0
        self.rows: dict[int, tuple[np.ndarray, int, int]] = {}

    def update(self, keys: Keys, gradients: np.ndarray) -> None:
        self.version += 1
        for key, gradient in zip(keys.tolist(), gradients, strict=True):
            alone = np.array([key], np.uint64)
            if key not in self.rows and not admitted(self.spec, alone, self.version)[0]:
                continue
            row, _, count = self.rows.get(key, (initial_rows(self.spec, alone)[0], 0, 0))
            self.rows[key] = row - gradient * RATE, self.version, count + 1
        self.evict()

    def due(self, key: int) -> bool:
        """A bucket's rows may go once in `evict_every` versions: its last six bits say when."""
        number = int(bucket(np.array([key], np.uint64))[0]) % 64
        return number * self.spec.evict_every // 64 == self.version % self.spec.evict_every

    def evict(self) -> None:
        spec, going = self.spec, set()
        for key, (_, touched, _) in self.rows.items():
            if spec.evict_age is not None and touched <= self.version - spec.evict_age:
                going.add(key)
        for key in filter(self.due, going):
            del self.rows[key]

    def read(self) -> np.ndarray:
        fresh = initial_rows(self.spec, KEYS)
        return np.array(
            [
                self.rows[key][0] if key in self.rows else row
                for key, row in zip(KEYS.tolist(), fresh, strict=True)
            ],
            np.float32,
        )


def table(spec: TableSpec) -> Table:
    return Table(spec, rows_optimizer(None, build({"name": "sgd", "learning_rate": float(RATE)})))


UPDATES = st.lists(st.lists(st.integers(0, IDS - 1), unique=True, max_size=8), min_size=1, max_size=24)


@promise(
    "Who reads an older version sees an evicted row; it returns as new; the same rows go on any number of "
    "servers."
)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@settings(max_examples=repetitions(15, soak=1000))
@given(updates=UPDATES, servers=st.integers(1, 3), saved=st.integers(0, 24))
def test_rows_come_and_go_as_in_the_twin(
    spec: TableSpec, updates: list[list[int]], servers: int, saved: int
) -> None:
    twin, tables = Twin(spec), [table(spec) for _ in range(servers)]
    parts = split(KEYS, servers)
    seen = [twin.read()]
    for number, ids in enumerate(updates):
        keys = np.sort(mix(np.array(ids, np.int64)))
        gradients = np.random.default_rng(number).normal(size=(keys.size, DIM)).astype(np.float32)
        twin.update(keys, gradients)
        for each, part in zip(tables, split(keys, servers), strict=True):
            own = [(keys[part], gradients[part], 1.0)] if keys[part].size else []
            advance(each, own, keep=True)
        if number == saved:
            # As from a checkpoint.
            before, tables = tables, [table(spec) for _ in range(servers)]
            for each, old in zip(tables, before, strict=True):
                each.restore(old.state(), twin.version)
            seen = [twin.read()] * (twin.version + 1)
            oldest = twin.version
        else:
            seen.append(twin.read())
        assert sum(each.count for each in tables) == len(twin.rows)
    oldest = tables[0].oldest
    for version in range(oldest, twin.version + 1):
        read = np.concatenate(
            [each.read(KEYS[part], version) for each, part in zip(tables, parts, strict=True)]
        )
        assert np.array_equal(read, seen[version]), version
    counts = np.concatenate([each.state().count for each in tables])
    assert sorted(counts) == sorted(count for _, _, count in twin.rows.values())


def test_an_evicted_row_that_returns_is_as_new_and_takes_a_free_place() -> None:
    spec = replace(BASE, evict_age=2, evict_every=1)
    ours = table(spec)
    one, other = KEYS[:1], KEYS[1:2]
    gradient = np.ones((1, DIM), np.float32)
    for key in (one, other, other, one):
        advance(ours, [(key, gradient, 1.0)], keep=False)
    assert np.array_equal(ours.read(one), initial_rows(spec, one) - RATE)
    assert ours.store.count == 2
    assert ours.touched(one)[0] == 4


def test_the_coin_falls_as_often_as_it_should_and_differs_by_version() -> None:
    keys = mix(np.arange(100_000))
    spec = replace(BASE, admit=0.3)
    first, second = admitted(spec, keys, 1), admitted(spec, keys, 2)
    assert abs(first.mean() - 0.3) < 0.01 and abs(second.mean() - 0.3) < 0.01
    assert abs((first & second).mean() - 0.09) < 0.01


@pytest.mark.parametrize(
    "wrong",
    [
        {"admit": 0},
        {"admit": 1.5},
        {"evict_age": 0},
        {"evict_every": 0},
    ],
    ids=str,
)
def test_rules_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(PlanError):
        TableSpec.from_json({"name": "t", "dim": 2, **wrong})


def test_a_specification_names_only_rules_that_it_has() -> None:
    assert TableSpec.from_json(SPECS["all"].to_json()) == SPECS["all"]
    assert not {"admit", "evict_age", "evict_every"} & set(TableSpec("t", 2).to_json())
