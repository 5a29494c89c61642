"""Rows of a checkpoint are merged without being held twice, and not read where memory has no room for them."""

import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from psserver import policies
from psserver.checkpoint import CheckpointError, Store, contents, increments
from psserver.checkpoint.increments import RowFiles, load_rows, save_rows
from psserver.checkpoint.resumption import LATEST
from psserver.coordinator import JobTerms
from psserver.service.store import resume_point
from tests.checkpoint.test_simulated import play

ROWS, DIM, PIECE = 20_000, 32, 1_000


def piece(keys: Any, version: int) -> dict[str, Any]:
    values = (keys[:, None] % 1000 + version + np.arange(DIM)).astype(np.float32)
    ages = np.full(keys.size, version, np.uint32)
    rows = {
        "keys": keys.astype(np.uint64),
        "values": values,
        "touched": ages,
        "count": ages,
        "slot/m": 2 * values,
    }
    return {f"table/0/{name}": array for name, array in rows.items()}


def saved(store: Store, changed: list[Any], gone: Any) -> RowFiles:
    """All rows, and then two increments, the first of which takes some keys away."""
    base: RowFiles | None = None
    for version, keys in enumerate(changed, start=1):
        pieces = [piece(keys[start : start + PIECE], version) for start in range(0, keys.size, PIECE)]
        if version > 1:
            for number, each in enumerate(pieces):
                each["table/0/gone"] = gone[: gone.size if (number, version) == (0, 2) else 0]
        base = save_rows(store, f"{version:010d}-j", 0, version, pieces, base)
    assert base is not None
    return base


def test_changes_are_put_in_and_little_is_held_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(increments, "BLOCK", 512)
    store, keys = Store(tmp_path), np.arange(0, 2 * ROWS, 2, dtype=np.uint64)
    gone, new = keys[5::10].copy(), np.arange(1, ROWS, 20, dtype=np.uint64)
    second = np.sort(np.concatenate([keys[::10], new]))
    base = saved(store, [keys, second, keys[3::10].copy()], gone)
    expected = {int(key): 1 for key in keys if key not in set(gone.tolist())}
    expected |= {int(key): 2 for key in second} | {int(key): 3 for key in keys[3::10]}
    about: Any = SimpleNamespace(files=base.files)
    tracemalloc.start()
    found = load_rows(store, base.name, about, 0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found["table/0/keys"].tolist() == sorted(expected)
    assert found["table/0/touched"].tolist() == [expected[key] for key in sorted(expected)]
    values = np.concatenate(
        [piece(np.array([key]), expected[key])["table/0/values"] for key in sorted(expected)]
    )
    assert np.array_equal(found["table/0/values"], values)
    assert np.array_equal(found["table/0/slot/m"], 2 * values)
    assert peak < 2.0 * sum(array.nbytes for array in found.values())


def test_rows_that_memory_has_no_room_for_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is an older checkpoint taken in their place."""
    folder = tmp_path / "run"
    whole = play(folder, "sync")
    read: list[object] = []
    monkeypatch.setattr(contents, "load_rows", lambda *given: read.append(given))
    (whole.path / "summary.json").unlink()
    names = Store(folder / "checkpoints").names()
    assert len(names) > 1
    # Without tables there are no rows, which take more than less than nothing.
    with pytest.raises(CheckpointError, match="while they are restored, expected at most"):
        resume_point.find(folder, LATEST, JobTerms("job"), policies.build("sync", {}, 1), None, room=-1.0)
    assert read == []
