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
from tests.service.serving import serving, wait_until
from tests.tables import test_sessions as sessions

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


def test_server_0_keeps_room_for_the_rows_of_all_servers(tmp_path: Path) -> None:
    asked: list[int] = []
    reserve = RunLog.reserve_rows
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunLog, "reserve_rows", lambda log, n: (asked.append(n), reserve(log, n))[1])
        with serving(servers=2, out=tmp_path) as cluster, sessions.connect(cluster) as session:
            assert sessions.step(session, 3)
            ids = np.unique(sessions.gradient(3)[0]).size
            wait_until(lambda: asked[-1:] == [ids * (8 + 4 * sessions.DIM)], "room for all rows")
