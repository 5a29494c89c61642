"""The disk keeps room for the final rows, which grow, beside the variables."""

import os
from pathlib import Path

import numpy as np
import pytest

from psserver import weights_file
from psserver.service.job.log_file import LogError
from psserver.service.job.run_log import RunLog
from pswire.model.plan import VariableSpec, make_plan
from pswire.model.tables import TableSpec

PLAN = make_plan([VariableSpec("w", (4,))], 1, [TableSpec("items", 2)])


def test_room_grows_with_rows_and_the_file_has_only_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, part = RunLog(tmp_path / "run"), tmp_path / "run" / "weights.safetensors.part"
    log.open()
    log.reserve_weights(PLAN)
    alone = part.stat().st_size
    log.reserve_rows(1_000_000)
    assert part.stat().st_size > alone + 1_250_000
    size = part.stat().st_size
    # Within the quarter more.
    log.reserve_rows(1_200_000)
    assert part.stat().st_size == size

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(LogError, match="no room for 2000000 bytes of tables"):
            log.reserve_rows(2_000_000)
        # Said once.
        log.reserve_rows(3_000_000)
    tables = {"items": (np.arange(3), np.ones((3, 2), np.float32))}
    log.write_weights({"w": np.ones(4, np.float32)}, tables)
    log.close()
    written = weights_file.load(tmp_path / "run" / "weights.safetensors")
    assert np.array_equal(written.tables["items"][0], np.arange(3)) and not part.exists()
