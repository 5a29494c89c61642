"""Searches in several tables at once, and those that are remembered, find what each table's index has."""

import numpy as np

from psserver.shard.tables import Table
from psserver.shard.tables.finder import Finder
from pswire.model.tables import TableSpec, mix
from tests.tables.twin import SGD, advance, gradient, table


def test_searches_find_what_each_index_has() -> None:
    """While rows come, and go, between a search and the same one again."""
    tables = [table(SGD, TableSpec(name, 3, evict_age=2, evict_every=5)) for name in "abc"]
    finder, random = Finder(), np.random.default_rng(0)
    asked = [[np.sort(mix(random.choice(60, size, replace=False))) for size in (30, 0, 45)] for _ in range(6)]
    for step in range(40):
        for wanted in (asked[step % 6], asked[(step + 1) % 6], asked[step % 6]):
            _check(finder, tables, [each.copy() for each in wanted])
        advance(tables[step % 3], [gradient(random.choice(60, 9).tolist(), step)])
        # Before the next search, rows may have come or gone.
        _check(finder, tables, asked[step % 6])
        for other in tables:
            while other.version <= step // 3:
                advance(other, [])
    assert all(each.evictions for each in tables)


def _check(finder: Finder, tables: list[Table], keys: list[np.ndarray]) -> None:
    slots, ends = finder.find(tables, keys)
    assert ends == np.cumsum([each.size for each in keys]).tolist()
    expected = [table.find(each) for table, each in zip(tables, keys, strict=True)]
    assert slots.tolist() == np.concatenate(expected).tolist()
