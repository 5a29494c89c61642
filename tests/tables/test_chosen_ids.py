"""Ids that somebody has chosen: they share no place that can be known before, and what is trained is the same."""

import numpy as np
import pytest

from psserver.fast import rows as kernels
from psserver.shard.tables.index import Index
from pswire.model.tables import Keys, bucket
from tests.tables.twin import gradient, table, update

KEYS = 20_000
# Keys of one bucket whose next bits are equal; keys that differ in their last bits, in their first, or in steps.
CHOSEN = {
    "last bits": np.arange(KEYS, dtype=np.uint64),
    "first bits": np.arange(KEYS, dtype=np.uint64) << np.uint64(49),
    "middle bits": np.arange(KEYS, dtype=np.uint64) << np.uint64(30),
    "steps": np.arange(KEYS, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15),
}


def longest_run(index: Index) -> int:
    """Return the most places in a row that are taken: no search is longer."""
    longest = 0
    for part in index.places.parts:
        free = np.flatnonzero(part[:, 2].view(np.int32) < 0)
        longest = max(longest, int(np.diff(free, append=free[0] + len(part)).max()) - 1)
    return longest


# Of 4,000 salts the worst for a hash that multiplies twice: its first bits then lie in a single run.
UNLUCKY = 0x212937C0CC01C7BE


@pytest.mark.parametrize("single", [1, 1 << 23])
@pytest.mark.parametrize("chosen", list(CHOSEN))
@pytest.mark.parametrize("salt", [None, UNLUCKY])
def test_chosen_keys_lie_as_others_do(
    single: int, chosen: str, salt: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if salt is not None:
        monkeypatch.setattr(kernels, "SALT", np.uint64(salt))
    keys: Keys = np.unique(CHOSEN[chosen])
    index = Index(single)
    for start in range(0, keys.size, 997):
        some = keys[start : start + 997]
        index.insert(some, np.arange(start, start + some.size, dtype=np.int32))
    # Chance has some 200 at this load; a fortieth of the keys would already take long.
    assert longest_run(index) < KEYS // 20
    assert np.array_equal(index.find(keys), np.arange(keys.size))
    index.remove(keys[::3])
    assert longest_run(index) < KEYS // 20


def test_the_salt_decides_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Orders and rows are the same in every process."""
    found = []
    for salt in (0, 2**64 - 1, 0x1234567890ABCDEF):
        monkeypatch.setattr(kernels, "SALT", np.uint64(salt))
        ours = table()
        for step in range(5):
            update(ours, gradient(list(range(step, 300, step + 1)), step), keep=False)
        state = ours.state()
        index = Index(64)
        index.insert(state.keys, np.arange(state.keys.size, dtype=np.int32))
        within = [each.tobytes() for each in index.within(0, int(bucket(state.keys).max()) + 1)]
        some = [each.tobytes() for each in index.sorted(np.arange(4096) % 2 == 0)]
        found.append([state.keys.tobytes(), state.values.tobytes(), state.count.tobytes(), *within, *some])
    assert found[0] == found[1] == found[2]
