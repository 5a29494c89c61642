"""Rows of a checkpoint are not read where memory has no room for them."""

from pathlib import Path

import pytest

from psserver import policies
from psserver.checkpoint import CheckpointError, Store, contents
from psserver.checkpoint.disk import RealDisk
from psserver.checkpoint.resumption import LATEST
from psserver.coordinator import JobTerms
from psserver.service.store import resume_point
from tests.checkpoint.test_simulated import play


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
        resume_point.find(
            folder, LATEST, JobTerms("job"), policies.build("sync", {}, 1), None, RealDisk(), room=-1.0
        )
    assert read == []
