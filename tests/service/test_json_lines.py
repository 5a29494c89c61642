"""A log file under short writes, a full disk and bad values: it always ends with a whole line."""

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psserver.service.job import log_file
from psserver.service.job.log_file import JsonLines, LogError
from psserver.service.job.run_log import RunLog
from tests.sentences import Recorder


class Disk:
    """`os.write` of a disk that takes `sizes` bytes at a time, and `room` bytes in all."""

    def __init__(self, room: int, sizes: list[int]) -> None:
        self.room, self.sizes, self.write = room, sizes, os.write

    def __call__(self, file: int, data: bytes) -> int:
        if self.room == 0:
            raise OSError(28, "No space left on device")
        count = min(len(data), self.room, self.sizes.pop() if self.sizes else len(data))
        self.room -= count
        return self.write(file, bytes(data[:count]))


@given(
    texts=st.lists(st.text(max_size=30), max_size=12),
    room=st.integers(0, 600),
    sizes=st.lists(st.integers(1, 40), max_size=30),
    flushes=st.sets(st.integers(0, 12)),
)
def test_a_full_disk_leaves_whole_lines_in_order(
    texts: list[str], room: int, sizes: list[int], flushes: set[int]
) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder, "decisions.jsonl")
        lines, failed = JsonLines(path), False
        patch.setattr(log_file.os, "write", Disk(room, sizes))
        for number, text in enumerate(texts):
            try:
                lines.append({"i": number, "text": text})
                if number in flushes:
                    lines.flush()
            except LogError as error:
                assert "decisions.jsonl cannot be written: No space left on device" in str(error)
                failed = True
                break
        try:
            lines.close()
        except LogError:
            failed = True
        content = path.read_text(encoding="utf-8")
    found = [json.loads(line) for line in content.splitlines()]
    assert content == "" or content.endswith("\n")
    assert [line["i"] for line in found] == list(range(len(found)))
    assert failed or len(found) == len(texts)


def test_after_a_failure_nothing_more_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sentences: Recorder
) -> None:
    """Room that comes back must not make a gap."""
    lines = JsonLines(tmp_path / "log")
    disk = Disk(5, [])
    monkeypatch.setattr(log_file.os, "write", disk)
    lines.append({"i": 0})
    with pytest.raises(LogError):
        lines.flush()
    disk.room = 10**6
    with sentences.raises(LogError):
        lines.append({"i": 1})
    lines.close()
    assert (tmp_path / "log").read_bytes() == b""


def test_a_value_that_is_not_json_changes_nothing(tmp_path: Path, sentences: Recorder) -> None:
    lines = JsonLines(tmp_path / "log")
    lines.append({"i": 0})
    with sentences.raises(LogError):
        lines.append({"loss": float("nan")})
    lines.append({"i": 1})
    lines.close()
    assert (tmp_path / "log").read_text() == '{"i":0}\n{"i":1}\n'


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path, sentences: Recorder) -> None:
    with sentences.raises(LogError):
        JsonLines(tmp_path / "missing" / "log")


def test_a_summary_or_weights_that_cannot_be_written_leave_the_old_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sentences: Recorder
) -> None:
    log = RunLog(tmp_path)
    log.write_summary({"version": 1})
    log.write_weights({"w": np.ones(3, np.float32)})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(file: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with sentences.raises(LogError):
        log.write_summary({"version": 2})
    with sentences.raises(LogError):
        log.write_weights({"w": np.zeros(3, np.float32)})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    log.close()
